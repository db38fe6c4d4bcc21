"""Grammars over a small vocabulary that is told, not loaded."""

from __future__ import annotations

import json

from actors.grammar.grammar import Grammar, GrammarKind
from actors.grammar.vocabulary import know

EOS = 1
# 97 ids, as the tiny models have: two control tokens, printable characters, some longer tokens.
PIECES = [b"", b"", *(bytes([code]) for code in range(32, 115)), b"{", b"}", b'{"', b'":', b'","', b"ab", b"abc", b"12",
          b"true", b'"a', b"  ", b"}}"]
_NAME = "test vocabulary"


def grammar(kind: GrammarKind, source: str, eos_ids: tuple[int, ...] = (EOS,)) -> Grammar:
    """A grammar over `PIECES`."""
    know(_NAME, lambda: PIECES)
    return Grammar(kind, source, eos_ids, _NAME, "nobody's")


def schema(of: dict[str, object]) -> Grammar:
    """Of a JSON schema."""
    return grammar(GrammarKind.JSON_SCHEMA, json.dumps(of))


def regex(pattern: str) -> Grammar:
    """Of a regular expression."""
    return grammar(GrammarKind.REGEX, pattern)


def spell(ids: list[int]) -> str:
    """The text of ids."""
    return b"".join(PIECES[token] for token in ids).decode()


def ids_of(text: str) -> list[int]:
    """One id per character."""
    return [PIECES.index(character.encode()) for character in text]

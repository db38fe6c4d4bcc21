"""What a text has to look like: data that travels with a request's sampling settings."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from enum import StrEnum

JSON_OBJECT = '{"type": "object"}'  # the JSON schema of any object


class BadGrammar(ValueError):
    """A grammar that cannot be used; one clear sentence."""


class GrammarKind(StrEnum):
    """How a grammar is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"  # a JSON array of strings: the text is one of them
    EBNF = "ebnf"  # GBNF (`root ::= ...`), or Lark as llguidance reads it (`start: ...`)


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar over the tokens of one vocabulary, those of the target. A text ends with one of `eos_ids`."""

    kind: GrammarKind
    source: str
    eos_ids: tuple[int, ...]  # at least one
    vocabulary: str  # fingerprint (`actors.loading.tokenizer`): ids of other vocabularies mean something else
    model: str  # whose tokenizer has this fingerprint, for processes that know none that has

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for all of it."""
        return _digest(self)


@functools.lru_cache(maxsize=1024)
def _digest(grammar: Grammar) -> bytes:
    parts = (grammar.kind, grammar.source, repr(grammar.eos_ids), grammar.vocabulary, grammar.model)
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()

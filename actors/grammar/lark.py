"""Every kind of grammar as the one that the grammar library compiles: Lark with JSON schemas inside.

`no_forcing` keeps the library from re-tokenising what can only go on in one way: then a token may come exactly when its
bytes may, whatever the tokens before it were, and the tokenizer's own way of cutting texts plays no part.
"""

from __future__ import annotations

import json
import re
from typing import Any

from actors.grammar.grammar import BadGrammar, GrammarKind

_HEAD = '%llguidance {"no_forcing": true}\n'
# A small model may fill the space between two JSON tokens without end; 32 are room for a deep indentation.
_WHITESPACE = r"[ \n\r\t]{1,32}"
_ANCHORED = re.compile(r"\A(\^?)(.*?)((?<!\\)(?:\\\\)*)(\$?)\Z", re.DOTALL)


def to_lark(kind: GrammarKind, source: str) -> str:
    """The text to compile. Raises `BadGrammar` for what is no JSON, no list of strings, no GBNF."""
    match kind:
        case GrammarKind.JSON_SCHEMA:
            return f"{_HEAD}start: %json {_schema(source)}\n"
        case GrammarKind.REGEX:
            return f"{_HEAD}start: /{_pattern(source)}/\n"
        case GrammarKind.CHOICE:
            return f"{_HEAD}start: {' | '.join(_literal(choice) for choice in _choices(source))}\n"
        case GrammarKind.EBNF:
            return _HEAD + _ebnf(source)


def _schema(source: str) -> str:
    try:
        schema = json.loads(source)
        if not isinstance(schema, dict | bool):
            raise BadGrammar("the JSON schema must be an object")
        if isinstance(schema, bool):
            schema = {} if schema else {"enum": []}
        return json.dumps(bounded(schema))
    except json.JSONDecodeError as error:
        raise BadGrammar(f"the JSON schema is no JSON: {error}") from error
    except RecursionError as error:
        raise BadGrammar("the JSON schema is nested too deeply: flatten it") from error


def bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with an end to the space between two tokens, unless it says itself what that may be."""
    given = schema.get("x-guidance", {})
    options = {"whitespace_pattern": _WHITESPACE, **(given if isinstance(given, dict) else {})}
    return {**schema, "x-guidance": options}


def _pattern(source: str) -> str:
    """A regular expression between slashes. It has to match the whole text, so anchors around it say nothing."""
    import llguidance

    match = _ANCHORED.match(source)
    assert match is not None
    return llguidance.regex_to_lark(match[2] + match[3])


def _choices(source: str) -> list[str]:
    try:
        choices = json.loads(source)
    except json.JSONDecodeError as error:
        raise BadGrammar(f"the choices are no JSON array: {error}") from error
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise BadGrammar("the choices must be a list of at least one string")
    return choices


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _ebnf(source: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(source)
    except RecursionError as error:
        raise BadGrammar("the grammar cannot be read: it is nested too deeply") from error
    except Exception as error:  # its reader raises plain ones
        raise BadGrammar(f"the grammar cannot be read: {' '.join(str(error).split())}") from error

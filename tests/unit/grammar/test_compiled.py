"""Grammars of every kind: what they allow, how a bad one is refused, and that each is compiled once."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from actors.grammar import compiled
from actors.grammar.compiled import compile_aside, is_ready, masks_of
from actors.grammar.grammar import JSON_OBJECT, BadGrammar, Grammar, GrammarKind
from actors.grammar.vocabulary import know
from tests.grammars import EOS, PIECES, grammar, ids_of, regex, schema

KINDS = GrammarKind


def allows_text(of: Grammar, text: str) -> bool:
    """Whether a text is allowed, id by id, with an end after it."""
    masks, ids = masks_of(of), [*ids_of(text), EOS]
    return all(masks.allows(np.array(ids[:i], np.int32), token) for i, token in enumerate(ids))


@pytest.mark.parametrize(
    ("of", "good", "bad"),
    [
        (regex("a+b"), ["ab", "aaab"], ["a", "b", "abb", ""]),
        (regex("^a/b$"), ["a/b"], ["^a/b$", "a"]),
        (regex(r"a\$"), ["a$"], ["a"]),
        (regex(""), [""], ["a"]),
        (grammar(KINDS.CHOICE, json.dumps(["no", "nor", 'a"b'])), ["no", "nor", 'a"b'], ["n", "norn", "a"]),
        (grammar(KINDS.EBNF, 'root ::= "a" | "b" root'), ["a", "bba"], ["b", "ab"]),
        (grammar(KINDS.EBNF, 'start: "a" | "b" start'), ["a", "bba"], ["b", "ab"]),
        (grammar(KINDS.JSON_SCHEMA, JSON_OBJECT), ["{}", '{"a": [1, 2]}'], ["[]", "1", "{"]),
        (schema({"type": "integer", "minimum": 7, "maximum": 12}), ["7", "12"], ["6", "13", "1"]),
        (schema({"type": "object", "properties": {"a": {"enum": ["b", 1]}}, "required": ["a"],
                 "additionalProperties": False}), ['{"a": "b"}', '{"a":1}'], ["{}", '{"a":2}', '{"a":1,"b":2}']),
    ],
    ids=lambda value: f"{value.kind}" if isinstance(value, Grammar) else "",
)
def test_a_grammar_allows_its_texts_and_no_others(of: Grammar, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not allows_text(of, text)] == []
    assert [text for text in bad if allows_text(of, text)] == []


def test_space_between_json_tokens_is_bounded() -> None:
    of = schema({"type": "array", "items": {"type": "integer"}})
    assert allows_text(of, "[" + " " * 32 + "1]")
    assert not allows_text(of, "[" + " " * 33 + "1]")


@pytest.mark.parametrize(
    ("kind", "source", "says"),
    [
        (KINDS.JSON_SCHEMA, "nonsense", "the JSON schema is no JSON: Expecting value"),
        (KINDS.JSON_SCHEMA, "[1]", "the JSON schema must be an object"),
        (KINDS.JSON_SCHEMA, '{"type": "objekt"}', "the grammar cannot be compiled: Invalid type: objekt"),
        (KINDS.JSON_SCHEMA, '{"not": {"type": "null"}}', 'the grammar cannot be compiled: Unimplemented keys: ["not"]'),
        (KINDS.JSON_SCHEMA, '{"enum": []}', "the grammar cannot be compiled: "),
        (KINDS.JSON_SCHEMA, '{"a":' * 50_000, "the JSON schema is"),
        (KINDS.REGEX, "[a-z", 'invalid regex "[a-z" (in regex): regex parse error: [a-z error: unclosed'),
        (KINDS.REGEX, "(?=a)b", "look-around, including look-ahead and look-behind, is not supported"),
        (KINDS.CHOICE, "[]", "the choices must be a list of at least one string"),
        (KINDS.EBNF, "hello", "the grammar cannot be read: Expected ::="),
        (KINDS.EBNF, 'root ::= foo', "the grammar cannot be "),
    ],
)
def test_a_bad_grammar_is_refused_with_one_line(kind: GrammarKind, source: str, says: str) -> None:
    for _ in range(2):  # the second time it is known to be bad
        with pytest.raises(BadGrammar) as caught:
            masks_of(grammar(kind, source))
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_vocabulary_that_cannot_end_a_text_takes_no_grammar() -> None:
    with pytest.raises(BadGrammar, match="no end-of-sequence id"):
        masks_of(grammar(KINDS.REGEX, "a", eos_ids=()))


def test_a_grammar_is_compiled_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    count, go = [], threading.Event()
    know("counted", lambda: (count.append(1), go.wait(10), PIECES)[-1])
    of = Grammar(KINDS.REGEX, "ab", (EOS,), "counted", "")
    asked = [compile_aside(of) for _ in range(3)]
    others = [threading.Thread(target=masks_of, args=(of,)) for _ in range(3)]
    for thread in others:
        thread.start()
    assert not is_ready(of)
    go.set()
    assert len({id(one.result(10)) for one in asked}) == 1
    for thread in others:
        thread.join(10)
    assert is_ready(of)
    assert len(count) == 1


def test_no_more_than_so_many_compiled_grammars_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MAX_COMPILED", 3)
    many = [regex(f"c{number}") for number in range(5)]
    for of in many:
        masks_of(of)
    assert [is_ready(of) for of in many] == [False, False, True, True, True]
    masks_of(many[2])
    masks_of(regex("c5"))
    assert [is_ready(of) for of in many] == [False, False, True, False, True]

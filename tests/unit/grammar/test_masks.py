"""A mask is a function of the text alone: of no call before, no order, no other sequence."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.grammar import states
from actors.grammar.compiled import _compile, masks_of
from actors.grammar.grammar import Grammar, GrammarKind
from actors.grammar.masks import Masks
from actors.messages import Ids
from tests.grammars import EOS, PIECES, grammar, ids_of, regex, schema

GRAMMARS = [
    regex("(ab|abc|12)*q?"),
    schema({"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}, "b": {"type": "integer"},
                                             "c": {"$ref": "#"}}, "required": ["a"], "additionalProperties": False}),
    grammar(GrammarKind.EBNF, 'root ::= "(" root ")" | "a"+ | root "," root'),
    grammar(GrammarKind.CHOICE, json.dumps(["ab", "abc", "abcab", "b"])),
]


def ids(tokens: list[int]) -> Ids:
    return np.array(tokens, np.int32)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(GRAMMARS), st.data())
def test_masks_depend_on_the_text_alone(of: Grammar, data: st.DataObject) -> None:
    """Texts that go on, go back, part and meet again, are left and come back; each against a matcher of its own."""
    masks = masks_of(of)
    texts: list[list[int]] = [[]]
    for _ in range(data.draw(st.integers(1, 25), "steps")):
        text = list(data.draw(st.sampled_from(texts), "text"))
        text = text[: data.draw(st.integers(0, len(text)), "kept")]
        for choice in data.draw(st.lists(st.integers(0, 2**20), max_size=4), "tokens"):
            allowed = np.flatnonzero(masks.allowed(ids(text)))
            is_legal = choice % 8 != 0
            text.append(int(allowed[choice % len(allowed)]) if is_legal else choice % len(PIECES))
        texts.append(text)
        fresh = _compile(of)
        expected = fresh.allowed(ids(text))
        np.testing.assert_array_equal(masks.allowed(ids(text)), expected)
        assert expected.any()
        for token in (-1, 0, EOS, *range(2, len(PIECES), 5), len(PIECES)):
            is_allowed = bool(0 <= token < len(expected) and expected[token])
            assert masks.allows(ids(text), token) == is_allowed
        assert masks.has_ended(ids(text)) == fresh.has_ended(ids(text))


def test_a_place_that_is_gone_back_to_is_the_place_it_was() -> None:
    """The library's own way back would lead to where a value may begin, not to where one has ended."""
    of = schema({"type": "object", "required": ["a", "b"], "additionalProperties": False, "properties": {
        "a": {"type": "string", "maxLength": 6}, "c": {"type": "integer"},
        "b": {"type": "array", "maxItems": 3, "items": {"enum": [0, 12, "ab"]}},
    }})
    masks, fresh = _compile(of), _compile(of)
    for pieces in (
        ('{"', "a", '":'), ('{"', "a", '"', " ", ":"), ('{"', "a", '"', " ", ":", "  "),
        ('{"', "a", '"', ":", '","', '","'), ('{"', "a", '"', ":", '","', "  "),
    ):
        text = ids([PIECES.index(piece.encode()) for piece in pieces])
        masks.allowed(text)
    np.testing.assert_array_equal(masks.allowed(text), fresh.allowed(text))


def only_ends(masks: Masks, text: list[int]) -> bool:
    return np.flatnonzero(masks.allowed(ids(text))).tolist() == [EOS] and masks.allows(ids(text), EOS)


def test_a_complete_text_that_cannot_go_on_can_only_end() -> None:
    masks = masks_of(regex("ab"))
    assert only_ends(masks, ids_of("ab"))
    assert not masks.has_ended(ids(ids_of("ab")))


def test_a_complete_text_that_may_go_on_may_end_as_well() -> None:
    masks = masks_of(regex("a+"))
    assert set(np.flatnonzero(masks.allowed(ids(ids_of("a"))))) == {EOS, *ids_of("a")}


@pytest.mark.parametrize("text", [[*ids_of("ab"), EOS], [*ids_of("ab"), EOS, 5], [*ids_of("ax"[:1]), 90], [96]])
def test_after_the_end_and_outside_the_grammar_only_an_end_may_come(text: list[int]) -> None:
    masks = masks_of(regex("ab"))
    assert masks.has_ended(ids(text))
    assert only_ends(masks, text)
    assert not masks.allows(ids(text), ids_of("a")[0])


def test_ids_beyond_the_vocabulary_are_never_allowed() -> None:
    masks = masks_of(regex(".*"))
    assert not masks.allows(ids([]), len(PIECES))
    assert masks.allowed(ids([])).shape == (len(PIECES),)


def test_sequences_that_take_turns_keep_their_own_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two long texts with one beginning must not be read again from there each time."""
    read: list[int] = []
    of = regex("a(1|2)*")
    masks = _compile(of)
    taken = type(masks._states._start).try_consume_tokens

    class Counting:
        def __init__(self, matcher: states.Matcher) -> None:
            self.matcher = matcher

        def deep_copy(self) -> Counting:
            return Counting(self.matcher.deep_copy())

        def try_consume_tokens(self, tokens: list[int]) -> int:
            read.append(len(tokens))
            return int(taken(self.matcher, tokens))

        def __getattr__(self, name: str) -> object:
            return getattr(self.matcher, name)

    masks._states._start = Counting(masks._states._start)  # type: ignore[assignment]
    texts = [ids_of("a"), ids_of("a")]
    for step in range(200):
        for number, text in enumerate(texts):
            text.append(ids_of("12"[(step + number) % 2])[0])
            masks.allowed(ids(text))
    assert sum(read[-200:]) == 200
    assert len(masks._states) <= 4


def test_no_more_than_so_many_states_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MAX_STATES", 5)
    masks = _compile(regex("[0-9]*"))
    for number in range(10, 40):
        masks.allowed(ids(ids_of(str(number) * 40)))
    assert len(masks._states) == 5
    assert len(masks._states._by_key) <= 5 * 80

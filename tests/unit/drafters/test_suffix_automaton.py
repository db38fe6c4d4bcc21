"""What followed which piece, and how often: the automaton against a count by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.drafters.suffix_automaton import Cursor, SuffixAutomaton


def counted(texts: list[list[int]], depth: int) -> dict[tuple[int, ...], Counter[int]]:
    """What follows each piece of at most `depth` tokens, by looking everywhere."""
    found: dict[tuple[int, ...], Counter[int]] = {}
    for text in texts:
        for end, token in enumerate(text):
            for length in range(min(end, depth) + 1):
                found.setdefault(tuple(text[end - length : end]), Counter())[token] += 1
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=40), st.integers(1, 5))
def test_continuations_and_their_counts_are_those_of_texts_that_grow_side_by_side(
    steps: list[tuple[int, int]], depth: int
) -> None:
    automaton = SuffixAutomaton(depth)
    cursors = [Cursor() for _ in range(3)]
    texts: list[list[int]] = [[], [], []]
    for number, token in steps:
        automaton.append(cursors[number], token)
        texts[number].append(token)
    wanted = counted(texts, depth)
    assert automaton.num_states <= max(1, 2 * len(steps))
    for piece, counts in wanted.items():
        place = automaton.find(list(piece))
        assert place.length == len(piece)
        shares = {token: share for token, share, _ in automaton.several(place, 99)}
        assert shares == pytest.approx({token: n / counts.total() for token, n in counts.items()})
        assert automaton.width(place) == len(counts)
        token, share, _ = automaton.best(place)
        assert counts[token] == max(counts.values()) == pytest.approx(share * counts.total())
        for token, _, after in automaton.several(place, 99):
            whole = [*piece, token][-depth:]
            if tuple(whole) in wanted:  # something follows, so that it can be looked up
                assert after == automaton.find(whole)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.lists(st.integers(0, 2), max_size=8))
@settings(max_examples=200, deadline=None)
def test_the_longest_end_that_something_follows_is_found_and_shorter_ones_in_turn(
    text: list[int], end: list[int]
) -> None:
    automaton, cursor = SuffixAutomaton(6), Cursor()
    for token in text:
        automaton.append(cursor, token)
    known = counted([text], 6)
    ends = [tuple(end[len(end) - size :]) for size in range(min(6, len(end)), -1, -1)]
    wanted = [piece for piece in ends if piece in known]
    place = automaton.find(end)
    assert place.length == len(wanted[0])
    lengths = [place.length]
    while (shorter := automaton.shorter(place)) is not None:
        place = shorter
        lengths.append(place.length)
    assert lengths[-1] == 0 and lengths == sorted(set(lengths), reverse=True)


def test_the_latest_of_equally_frequent_continuations_is_the_best() -> None:
    automaton, cursor = SuffixAutomaton(4), Cursor()
    for token in (1, 5, 1, 6, 2):
        automaton.append(cursor, token)
    assert automaton.best(automaton.find([1]))[:2] == (6, 0.5)


def test_a_depth_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="depth 0"):
        SuffixAutomaton(0)

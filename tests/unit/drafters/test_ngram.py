"""Prompt lookup against a search by eye, and the contract every drafter keeps."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.drafter_specs import NgramSpec
from actors.drafters.ngram import NgramDrafter
from actors.messages import Context, Draft, DraftShape
from actors.sampling.params import SamplingParams

SPEC = NgramSpec(ngram_max=3, ngram_min=1)


def context(tokens: list[int], start: int = 0, round_: int = 0, sequence_id: str = "s") -> Context:
    """Context whose whole sequence is `tokens`, told from `start` on."""
    return Context(
        sequence_id=sequence_id, start=start, tokens=np.array(tokens[start:], np.int32), num_prompt_tokens=1,
        num_committed=len(tokens), sampling=SamplingParams(), round=round_,
    )  # fmt: skip


def propose(drafter: NgramDrafter, tokens: list[int], k: int, start: int = 0, round_: int = 0) -> Draft:
    return drafter.propose(context(tokens, start, round_), DraftShape(k)).result(timeout=0)


def naive(tokens: list[int], k: int, spec: NgramSpec = SPEC) -> list[int]:
    """The rule, by scanning the text: longest suffix, most recent earlier occurrence, copied onwards."""
    for size in range(spec.ngram_max, spec.ngram_min - 1, -1):
        suffix = tokens[len(tokens) - size :] if size <= len(tokens) else None
        for end in range(len(tokens) - 1, size - 1, -1):
            if suffix is not None and tokens[end - size : end] == suffix:
                text = list(tokens)
                for i in range(k):
                    text.append(text[end + i])
                return text[len(tokens) :]
    return []


def test_draft_copies_what_followed_the_longest_known_suffix() -> None:
    draft = propose(NgramDrafter(SPEC), [1, 2, 3, 9, 8, 7, 5, 3, 4, 1, 2, 3], 3)
    assert draft.tokens.tolist() == [9, 8, 7]
    assert draft.tokens.dtype == np.int32
    assert draft.laws is None
    assert draft.error is None


def test_most_recent_occurrence_wins_and_a_short_period_fills_the_draft() -> None:
    assert propose(NgramDrafter(SPEC), [1, 5, 1, 6, 1], 2).tokens.tolist() == [6, 1]
    assert propose(NgramDrafter(SPEC), [4, 4, 4], 5).tokens.tolist() == [4] * 5


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
def test_no_match_is_an_empty_draft_without_error(tokens: list[int]) -> None:
    draft = propose(NgramDrafter(SPEC), tokens, 4)
    assert draft.tokens.tolist() == []
    assert draft.error is None
    assert not draft.prefix_missing


def test_unknown_prefix_is_named_and_the_full_context_then_serves() -> None:
    drafter = NgramDrafter(SPEC)
    assert propose(drafter, [1, 2, 1], 2, start=2).prefix_missing
    assert propose(drafter, [1, 2, 1], 2).tokens.tolist() == [2, 1]


def test_unread_prefix_shorter_than_start_is_missing() -> None:
    drafter = NgramDrafter(SPEC)
    propose(drafter, [1, 2], 1)
    assert propose(drafter, [1, 2, 3, 1], 1, start=3).prefix_missing


def test_stale_round_is_refused_and_changes_nothing() -> None:
    drafter = NgramDrafter(SPEC)
    propose(drafter, [1, 2, 1], 2, round_=5)
    assert "stale" in (propose(drafter, [7], 2, round_=4).error or "")
    assert propose(drafter, [1, 2, 1], 2, start=3, round_=5).tokens.tolist() == [2, 1]


def test_closed_and_idle_sequences_are_forgotten() -> None:
    now = [0.0]
    drafter = NgramDrafter(SPEC, idle_timeout_s=10.0, clock=lambda: now[0])
    for name in ("a", "b", "c"):
        drafter.propose(context([1, 1], sequence_id=name), DraftShape(1))
    drafter.close("a")
    drafter.close("never seen")
    assert drafter.stats().num_sequences == 2
    now[0] = 11.0
    drafter.propose(context([1, 1], sequence_id="d"), DraftShape(1))
    assert drafter.stats().num_sequences == 1


def test_nothing_raises_after_shutdown_or_for_a_senseless_count() -> None:
    drafter = NgramDrafter(SPEC)
    assert propose(drafter, [1, 1], 0).error
    drafter.shutdown()
    assert "shut down" in (propose(drafter, [1, 1], 2).error or "")


def test_unusable_sizes_are_refused_with_the_fix() -> None:
    with pytest.raises(ValueError, match="1 <= ngram_min <= ngram_max"):
        NgramDrafter(NgramSpec(ngram_max=1, ngram_min=2))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.lists(st.integers(0, 2), max_size=6)), min_size=1, max_size=12),
    st.integers(1, 6),
    st.booleans(),
)
def test_incremental_index_equals_a_scan_through_any_growth_and_rollback(
    edits: list[tuple[int, list[int]]], k: int, tell_all: bool
) -> None:
    """Each edit keeps a prefix and appends; the drafter is told from any place at or before the change."""
    drafter = NgramDrafter(SPEC)
    tokens: list[int] = []
    for round_, (keep, new) in enumerate(edits):
        keep = min(keep, len(tokens))
        tokens = tokens[:keep] + new
        draft = propose(drafter, tokens, k, start=0 if tell_all else keep, round_=round_)
        assert draft.tokens.tolist() == naive(tokens, k)
    assert drafter.stats().extra["num_held_tokens"] == len(tokens)


def test_a_round_costs_the_new_tokens_not_the_whole_text() -> None:
    drafter = NgramDrafter(SPEC)
    tokens = np.random.default_rng(0).integers(0, 50, 60_000).tolist()
    propose(drafter, tokens, 8)
    started = time.perf_counter()
    for round_ in range(1, 101):
        tokens.append(round_ % 7)
        propose(drafter, tokens, 8, start=len(tokens) - 1, round_=round_)
    per_round_s = (time.perf_counter() - started) / 100
    assert per_round_s < 0.01  # a scan of 60,000 tokens in Python takes longer than that

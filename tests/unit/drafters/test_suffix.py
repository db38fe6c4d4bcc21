"""Suffix decoding: what it drafts, what it remembers, what it never takes for decided."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.drafter_specs import NgramSpec, SuffixSpec
from actors.drafters.ngram import NgramDrafter
from actors.drafters.suffix import SuffixDrafter
from actors.messages import AheadPlan, Context, Draft, DraftShape
from actors.sampling.params import SamplingParams
from tests.repetitive import agent, edits, replay, words

ALONE = SuffixSpec(max_cached_requests=0)


def context(
    tokens: list[int], *, committed: int | None = None, prompt: int = 1, start: int = 0, round_: int = 0,
    name: str = "s",
) -> Context:
    """A sequence of `tokens`, told from `start` on, of which the first `committed` are decided."""
    return Context(
        name, start, np.array(tokens[start:], np.int32), prompt, len(tokens) if committed is None else committed,
        SamplingParams(), round_,
    )  # fmt: skip


def propose(drafter: SuffixDrafter, tokens: list[int], k: int | DraftShape = 8, **changes: object) -> Draft:
    shape = DraftShape(k) if isinstance(k, int) else k
    return drafter.propose(context(tokens, **changes), shape).result(timeout=0)  # type: ignore[arg-type]


def test_a_draft_is_what_followed_the_longest_known_end() -> None:
    draft = propose(SuffixDrafter(ALONE), [1, 2, 3, 9, 8, 7, 5, 3, 4, 1, 2, 3], 3)
    assert draft.tokens.tolist() == [9, 8, 7]
    assert draft.laws is None and draft.parents is None and draft.error is None


def test_the_more_frequent_continuation_wins_and_a_short_period_fills_the_draft() -> None:
    assert propose(SuffixDrafter(ALONE), [1, 5, 9, 1, 5, 9, 1, 6, 9, 1], 1).tokens.tolist() == [5]
    assert propose(SuffixDrafter(ALONE), [1, 2, 3] * 4, 10).tokens.tolist() == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]


def test_a_draft_is_as_long_as_its_match_allows_and_ends_where_it_gets_unlikely() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 2]
    assert len(propose(SuffixDrafter(replace(ALONE, spec_factor=2.0)), text).tokens) == 2
    assert len(propose(SuffixDrafter(replace(ALONE, spec_factor=5.0)), text).tokens) == 5
    forked = [7, *itertools.chain.from_iterable([5, i] for i in range(10, 20)), 7, 5]
    assert propose(SuffixDrafter(replace(ALONE, min_token_prob=0.5)), forked, 1).tokens.tolist() == [10]
    often = [5, 1, 5, 2, 5, 3, 5, 4, 5]
    assert propose(SuffixDrafter(replace(ALONE, min_token_prob=0.3)), often).tokens.tolist() == []
    assert propose(SuffixDrafter(replace(ALONE, min_token_prob=0.2)), often).tokens.tolist()[:1] == [4]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
def test_no_match_is_an_empty_draft_without_error(tokens: list[int]) -> None:
    draft = propose(SuffixDrafter(SuffixSpec()), tokens)
    assert draft.tokens.tolist() == [] and draft.error is None and not draft.prefix_missing


def test_a_missing_prefix_and_a_stale_round_are_named() -> None:
    drafter = SuffixDrafter(SuffixSpec())
    assert propose(drafter, [1, 2, 1], start=2).prefix_missing
    assert propose(drafter, [1, 2, 1], 1, round_=5).tokens.tolist() == [2]
    assert "stale" in (propose(drafter, [7], round_=4).error or "")
    assert propose(drafter, [1, 2, 1], 1, start=3, round_=5).tokens.tolist() == [2]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.lists(st.integers(0, 2), max_size=5), st.integers(0, 6)),
        min_size=1, max_size=10,
    ),
    st.booleans(), st.booleans(),
)
def test_what_was_never_committed_leaves_no_trace(
    steps: list[tuple[int, list[int], int]], tell_all: bool, tree: bool
) -> None:
    """Each step takes back some undecided tokens, adds some, and decides some: as if only the decided ever existed."""
    drafter = SuffixDrafter(ALONE)
    shape = DraftShape(6, num_nodes=9) if tree else DraftShape(6)
    tokens: list[int] = []
    committed = 0
    for round_, (back, new, decide) in enumerate(steps):
        keep = max(committed, len(tokens) - back)
        tokens = tokens[:keep] + new
        committed = min(committed + decide, len(tokens))
        told = 0 if tell_all else keep
        got = propose(drafter, tokens, shape, committed=committed, start=told, round_=round_)
        fresh = propose(SuffixDrafter(ALONE), tokens, shape, committed=committed)
        assert got.tokens.tolist() == fresh.tokens.tolist()
        assert (got.parents is None) == (fresh.parents is None)
        if got.parents is not None and fresh.parents is not None:
            assert got.parents.tolist() == fresh.parents.tolist()


def test_committed_outputs_of_other_requests_are_found_prompts_and_undecided_tokens_are_not() -> None:
    drafter = SuffixDrafter(SuffixSpec())
    text = [*range(100, 120), 7, 8, 9, 10, 11, 12]
    propose(drafter, text, prompt=20, committed=23, name="a")
    assert propose(drafter, [7, 8], name="b").tokens.tolist() == [9]  # as far as it is decided, while "a" goes on
    assert propose(drafter, [8, 9], name="c").tokens.tolist() == []
    assert propose(drafter, [103, 104], name="d").tokens.tolist() == []  # of its prompt
    drafter.close("a", np.array(text, np.int32))
    assert propose(drafter, [8, 9], name="e").tokens.tolist() == [10, 11, 12]
    assert propose(drafter, [118, 119], 3, name="f").tokens.tolist() == [7, 8, 9]  # how an output begins
    assert drafter.stats().extra["num_stored_requests"] >= 1


def test_a_sequence_closed_without_its_truth_or_with_another_adds_nothing() -> None:
    drafter = SuffixDrafter(SuffixSpec())
    propose(drafter, [1, 2, 3, 4], committed=2, name="a")
    drafter.close("a")
    propose(drafter, [1, 2, 3, 4], committed=3, name="b")
    drafter.close("b", np.array([5, 5, 5, 5, 5, 5], np.int32))
    drafter.close("never seen", np.array([1, 2, 3, 4], np.int32))
    assert propose(drafter, [2, 3], name="c").tokens.tolist() == []
    assert drafter.stats().num_sequences == 1


def test_memory_is_bounded_and_the_oldest_outputs_go_first() -> None:
    for bounds in (SuffixSpec(max_cached_requests=10), SuffixSpec(max_cached_tokens=200)):
        drafter = SuffixDrafter(bounds)
        for number in range(50):
            output = [1000 + 20 * number + i for i in range(20)]
            drafter.propose(context([0, *output], name=f"{number}"), DraftShape(1))
            drafter.close(f"{number}", np.array([0, *output], np.int32))
            extra = drafter.stats().extra
            assert extra["num_stored_requests"] <= 12 and extra["num_stored_tokens"] <= 210
        newest, oldest = 1000 + 20 * 49, 1000
        assert propose(drafter, [newest, newest + 1], 2, name="x").tokens.tolist() == [newest + 2, newest + 3]
        assert propose(drafter, [oldest, oldest + 1], 2, name="y").tokens.tolist() == []


def test_one_endless_output_keeps_to_the_bound_too() -> None:
    drafter = SuffixDrafter(SuffixSpec(max_cached_tokens=100))
    tokens = list(range(1000))
    propose(drafter, tokens)
    assert drafter.stats().extra["num_stored_tokens"] <= 100
    assert propose(drafter, [997, 998], 1, name="x").tokens.tolist() == [999]


SHAPES = [
    DraftShape(5, num_nodes=12), DraftShape(5, widths=(3, 2, 1)), DraftShape(2, widths=(2, 2, 2)),
    DraftShape(5, siblings=2),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_trees_have_the_shape_asked_for_and_the_likeliest_path(shape: DraftShape) -> None:
    drafter = SuffixDrafter(replace(SuffixSpec(), min_token_prob=0.0))
    rng = np.random.default_rng(0)
    text = rng.integers(0, 4, 400).tolist()
    seen = set[tuple[int, ...]]()
    for round_ in range(40):
        draft = propose(drafter, text, shape, round_=round_)
        chain = propose(drafter, text, DraftShape(shape.num_tokens), name="c", round_=round_)
        assert draft.parents is not None and len(draft.tokens)
        parents = draft.parents.tolist()
        depths: list[int] = []
        paths: list[list[int]] = []
        for node, parent in enumerate(parents):
            assert -1 <= parent < node
            depths.append(1 if parent < 0 else depths[parent] + 1)
            paths.append([*([] if parent < 0 else paths[parent]), int(draft.tokens[node])])
        assert len({tuple(path) for path in paths}) == len(paths)  # siblings differ
        assert max(depths) <= shape.num_tokens
        limit = min(len(chain.tokens), len(shape.widths)) if shape.widths else len(chain.tokens)
        if not shape.num_nodes:
            assert chain.tokens.tolist()[: min(1, limit)] == paths[0][: min(1, limit)]
        if shape.num_nodes:
            assert len(parents) <= shape.num_nodes
        for node in range(-1, len(parents)):
            width = parents.count(node)
            level = depths[node] if node >= 0 else 0
            if shape.widths:
                assert width <= (shape.widths[level] if level < len(shape.widths) else 0)
            elif shape.siblings:
                first = node < 0 or all(parents.index(parents[i]) == i for i in _up(node, parents))
                assert width <= (1 + shape.siblings if first else 0)
        seen |= {tuple(parents)}
        text.append(int(rng.integers(0, 4)))
    assert len(seen) > 1 or shape.widths


def _up(node: int, parents: list[int]) -> list[int]:
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = parents[node]
    return nodes


def test_what_would_follow_the_whole_draft_is_drafted_ahead() -> None:
    drafter = SuffixDrafter(ALONE)
    text = [*range(10, 30), 10, 11, 12]
    draft = propose(drafter, text, 4)
    found = drafter.enumerate(context(text, round_=1), draft, 0, AheadPlan(DraftShape(3), 4, 2, 200, 1.0)).result(0)
    (branch,) = found.branches
    assert (branch.node, branch.token, branch.draft.tokens.tolist()) == (3, 17, [18, 19, 20])
    assert propose(drafter, [*text, 13, 99], start=len(text), round_=2).tokens.tolist() == []


def test_nothing_raises_after_shutdown_or_for_a_senseless_count() -> None:
    drafter = SuffixDrafter(SuffixSpec())
    assert propose(drafter, [1, 1], 0).error
    drafter.shutdown()
    assert "shut down" in (propose(drafter, [1, 1], 2).error or "")
    drafter.close("s", np.array([1, 1], np.int32))


def test_idle_sequences_are_forgotten() -> None:
    now = [0.0]
    drafter = SuffixDrafter(SuffixSpec(), idle_timeout_s=10.0, clock=lambda: now[0])
    propose(drafter, [1, 1], name="a")
    now[0] = 11.0
    propose(drafter, [1, 1], name="b")
    assert drafter.stats().num_sequences == 1


def test_threads_may_call_at_once() -> None:
    drafter = SuffixDrafter(SuffixSpec(max_cached_tokens=500))
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            rng = np.random.default_rng(number)
            for turn in range(10):
                text = rng.integers(0, 5, 50).tolist()
                for round_, end in enumerate(range(10, 50, 5)):
                    draft = propose(drafter, text[:end], DraftShape(4, num_nodes=6), name=f"{number}-{turn}",
                                    round_=round_)
                    assert draft.error is None and not draft.prefix_missing
                drafter.close(f"{number}-{turn}", np.array(text, np.int32))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert drafter.stats().num_sequences == 0


def test_on_an_agents_and_an_editors_texts_three_tokens_and_more_are_committed_per_round() -> None:
    vocabulary: dict[str, int] = {}
    for requests in (agent(1), edits(2)):
        texts = [(words(r.prompt, vocabulary), words(r.answer, vocabulary)) for r in requests]
        by_suffix = replay(SuffixDrafter(SuffixSpec()), texts, DraftShape(16))
        by_tree = replay(SuffixDrafter(SuffixSpec()), texts, DraftShape(16, num_nodes=32))
        by_ngram = replay(NgramDrafter(NgramSpec()), texts, DraftShape(16))
        alone = replay(SuffixDrafter(ALONE), texts, DraftShape(16))
        assert by_suffix.num_tokens == sum(len(answer) for _, answer in texts)
        assert by_suffix.mat >= 3.0
        assert by_tree.mat >= by_suffix.mat >= alone.mat
        assert by_suffix.mat > 1.1 * by_ngram.mat and by_suffix.num_drafted < by_ngram.num_drafted


def test_a_round_costs_microseconds_per_token_however_long_the_text() -> None:
    drafter = SuffixDrafter(SuffixSpec())
    tokens = np.random.default_rng(0).integers(0, 50, 40_000).tolist()
    for call in range(20):  # so many calls read it all
        propose(drafter, tokens, prompt=len(tokens), start=40_000 if call else 0)
    started = time.perf_counter()
    for round_ in range(1, 101):
        tokens.append(round_ % 7)
        propose(drafter, tokens, 8, start=len(tokens) - 1, prompt=40_000, round_=round_)
    per_round_s = (time.perf_counter() - started) / 100
    assert per_round_s < 0.01  # measured 0.0003: a bound for a busy machine, far below a scan of the text

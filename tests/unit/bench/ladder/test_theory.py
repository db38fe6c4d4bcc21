"""Theory against numbers that were worked out elsewhere, and against throwing dice."""

from __future__ import annotations

import random

import pytest

from cluster.bench.ladder import theory

DRAFT_COST = 4.1 / 71.4


@pytest.mark.parametrize(("lookahead", "speedup"), [(3, 2.7), (5, 3.2), (8, 3.5), (12, 3.5)])
def test_the_synchronous_speedups_of_the_70b_pair_are_the_known_ones(lookahead: int, speedup: float) -> None:
    assert theory.sync_speedup(0.85, lookahead, DRAFT_COST) == pytest.approx(speedup, abs=0.06)


def test_a_perfect_draft_commits_all_of_it_and_one_more() -> None:
    assert theory.expected_tokens(1.0, 7) == 8.0
    assert theory.expected_tokens(0.0, 7) == 1.0


def test_hops_cost_what_they_take() -> None:
    without, with_hops = (theory.sync_speedup(0.85, 5, DRAFT_COST, hops) for hops in (0.0, 8 / 71.4))
    assert without / with_hops == pytest.approx((5 * DRAFT_COST + 1 + 8 / 71.4) / (5 * DRAFT_COST + 1))


def test_the_best_lookahead_is_better_than_its_neighbours() -> None:
    best, k = theory.best_sync(0.85, DRAFT_COST)
    assert all(best >= theory.sync_speedup(0.85, other, DRAFT_COST) for other in (k - 1, k + 1))


def test_rounds_that_always_hit_cost_a_pass_each() -> None:
    assert theory.overlap_speedup(0.85, 12, DRAFT_COST, 1.0, 5) == pytest.approx(theory.expected_tokens(0.85, 12))
    assert theory.overlap_speedup(0.85, 12, DRAFT_COST, 0.0, 5) == pytest.approx(
        theory.sync_speedup(0.85, 5, DRAFT_COST)
    )


def test_the_best_cascade_beats_the_best_pair_of_its_tiers_as_known() -> None:
    small, medium = 0.4 / 71.4, 8 / 71.4
    three, _, _ = theory.best_three_tier(0.55, 0.9, small, medium)
    pairs = max(theory.best_sync(0.5, small)[0], theory.best_sync(0.9, medium)[0])
    assert three / pairs == pytest.approx(1.27, abs=0.05)


@pytest.mark.parametrize(("size", "lookahead"), [(1, 1), (8, 3), (8, 5)])
def test_a_window_takes_as_many_passes_and_holds_as_many_tokens_as_dice_say(size: int, lookahead: int) -> None:
    dice = random.Random(1)
    passes, lengths = 0, []
    for _ in range(20_000):
        have = 0
        while have < size:
            passes += 1
            accepted = 0
            while accepted < lookahead and dice.random() < 0.55:
                accepted += 1
            have += accepted + 1
        lengths.append(have)
    found = theory.window(0.55, size, lookahead)
    assert sum(found.lengths.values()) == pytest.approx(1.0)
    assert found.passes == pytest.approx(passes / 20_000, rel=0.02)
    mean = sum(length * chance for length, chance in found.lengths.items())
    assert mean == pytest.approx(sum(lengths) / 20_000, rel=0.02)


def test_a_tree_without_a_second_guess_is_a_chain_and_one_with_it_commits_more() -> None:
    chain = theory.expected_tokens(0.85, 8)
    assert theory.tree_tokens((0.85, 0.0), 8, 8) == pytest.approx(chain)
    assert theory.tree_tokens((0.85, 0.075), 63, 8) > chain + 1
    assert theory.tree_tokens((0.85, 0.075), 63, 0) == 1.0
    # With room for all nodes the levels are independent: each is right with 0.85 + 0.15 / 2.
    assert theory.tree_tokens((0.85, 0.075), 2**9, 8) == pytest.approx(theory.expected_tokens(0.925, 8))

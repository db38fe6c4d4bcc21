"""Which ladder a controller has picked, and which ones are compared."""

from __future__ import annotations

import pytest

from cluster.bench.ladder.configs import medium_to_target, small_to_target, three_pools, three_tiers
from cluster.bench.ladder.parts.tiers import LADDER_PICK, MEDIUM_PICK, PLAIN_PICK, SMALL_PICK, Sizes, pick


@pytest.mark.parametrize(("small", "medium", "picked"), [
    (12.0, 5.0, LADDER_PICK), (0.2, 9.0, MEDIUM_PICK), (4.0, 0.1, SMALL_PICK), (0.0, 0.0, PLAIN_PICK),
])
def test_the_passes_of_the_lower_tiers_tell_what_was_picked(small: float, medium: float, picked: str) -> None:
    assert pick(small, medium) == picked


def test_theory_wants_three_tiers_and_none_of_a_small_one_that_is_hardly_ever_right() -> None:
    assert Sizes(three_tiers(1)).theory_gain() == pytest.approx(1.28, abs=0.03)
    assert Sizes(three_pools(small_agreement=0.05)).theory_gain() < 1.02


def test_the_ladders_differ_in_nothing_but_their_tiers() -> None:
    assert [tier.name for tier in small_to_target().tiers] == ["small", "target"]
    assert [tier.name for tier in medium_to_target().tiers] == ["medium", "target"]
    assert [len(pool) for pool in three_pools().processes] == [1, 1, 1]
    assert three_tiers(3).tiers[0].window == 3

"""Which layers are left out: the search finds what pays, within its budget, the same each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.drafters.skip_search import Skip, search, speed_up


def test_the_expected_speed_up_is_the_textbooks() -> None:
    assert speed_up(0.0, 0.25) == pytest.approx(1 / 1.25)  # at least one token is drafted
    assert speed_up(0.8, 0.2) == pytest.approx(max((1 - 0.8 ** (k + 1)) / 0.2 / (0.2 * k + 1) for k in range(1, 17)))
    assert speed_up(1.0, 0.5) == pytest.approx(17 / 9)


def test_layers_that_nobody_misses_are_found() -> None:
    useless = {3, 4, 7, 9}

    def agreement(skip: Skip) -> float:
        return 0.95 * 0.5 ** len(skip - useless)

    found = search(12, agreement, lambda num_run: num_run / 12, 200)
    assert set(found.skip) == useless
    assert found.agreement == pytest.approx(0.95)


def test_a_swap_finds_what_single_layers_do_not_tell() -> None:
    """Each of 0 and 1 is missed little alone, but much together; 5 and 6 are missed together no more than alone."""

    def agreement(skip: Skip) -> float:
        loss = {0: 0.01, 1: 0.01, 5: 0.03, 6: 0.03}
        return 0.97 - sum(loss.get(layer, 0.4) for layer in skip) - 0.5 * ({0, 1} <= skip) + 0.02 * ({5, 6} <= skip)

    found = search(8, agreement, lambda num_run: num_run / 8, 400)
    assert {5, 6} <= set(found.skip)
    assert len({0, 1} & set(found.skip)) == 1


@given(st.integers(2, 10), st.integers(1, 80), st.integers(0, 2**30))
def test_the_budget_is_kept_and_the_result_repeatable(num_layers: int, budget: int, seed: int) -> None:
    asked: list[Skip] = []

    def agreement(skip: Skip) -> float:
        assert 1 <= len(skip) < num_layers
        asked.append(skip)
        return (hash((seed, *sorted(skip))) % 1000) / 1000

    first = search(num_layers, agreement, lambda num_run: num_run / num_layers, budget)
    assert len(asked) == len(set(asked)) == first.num_evaluations <= budget
    assert search(num_layers, agreement, lambda num_run: num_run / num_layers, budget) == first
    assert first.speed_up == max(
        speed_up((hash((seed, *sorted(skip))) % 1000) / 1000, (num_layers - len(skip)) / num_layers)
        for skip in asked[: first.num_evaluations]
    )

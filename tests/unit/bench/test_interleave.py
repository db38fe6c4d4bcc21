"""Variants are measured in turn."""

from __future__ import annotations

import pytest

from cluster.bench.interleave import interleaved, num_runs


def test_every_round_runs_each_variant_once_in_a_rotated_order_and_warm_up_is_not_recorded() -> None:
    ran: list[str] = []

    def variant(name: str) -> float:
        ran.append(name)
        return float(len(ran))

    done = 0

    def count() -> None:
        nonlocal done
        done += 1

    variants = {name: lambda name=name: variant(name) for name in "abc"}  # type: ignore[misc]
    figures = interleaved(variants, rounds=3, warmups=1, on_run=count)
    rounds = ["".join(ran[i : i + 3]) for i in range(0, 12, 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len(set(rounds)) == 3
    assert {name: len(values) for name, values in figures.items()} == {"a": 3, "b": 3, "c": 3}
    assert min(min(values) for values in figures.values()) > 3  # none of the first round
    assert done == num_runs(variants, 3)


def test_nothing_measured_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least once"):
        interleaved({}, rounds=0)

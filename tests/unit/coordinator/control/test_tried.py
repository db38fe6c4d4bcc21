"""Measured rounds correct the model where they were made, help next to it, and fade."""

from __future__ import annotations

import pytest

from cluster.coordinator.control.tried import Tried

CHAIN = (0,)


def seconds(load: float, k: int) -> float:
    """A model that knows nothing of queues."""
    return 0.1 + 0.005 * k


def measured(load: int, k: int, value: float, rounds: int = 6) -> Tried:
    tried = Tried()
    for _ in range(rounds * load):
        tried.passed(load)
        tried.add(load, CHAIN if k else (), k, value)
    return tried


def test_nothing_measured_leaves_the_model_as_it_is() -> None:
    factors, rounds = Tried().factors(4, CHAIN, 8, seconds)
    assert factors == [1.0] * 9 and rounds == [0.0] * 9


def test_what_was_measured_at_a_k_stands_for_itself() -> None:
    factors, _ = measured(4, 5, 2 * seconds(4, 5)).factors(4, CHAIN, 8, seconds)
    assert factors[5] == pytest.approx(2.0, rel=0.1)
    assert 1.0 < factors[8] < factors[6] < factors[5]


def test_a_step_between_two_measured_k_is_not_smoothed_away() -> None:
    tried = measured(4, 5, seconds(4, 5))
    for _ in range(24):
        tried.add(4, CHAIN, 6, 1.5 * seconds(4, 6))
    factors, _ = tried.factors(4, CHAIN, 8, seconds)
    assert factors[5] == pytest.approx(1.0, abs=0.06)
    assert factors[6] == pytest.approx(1.5, abs=0.1)


def test_drafts_tell_nothing_of_plain_rounds_nor_plain_rounds_of_drafts() -> None:
    assert measured(4, 1, 1.0).factors(4, CHAIN, 4, seconds)[0][0] == 1.0
    assert measured(4, 0, 1.0).factors(4, CHAIN, 4, seconds)[0][1:] == [1.0] * 4


def test_one_drafters_rounds_tell_nothing_of_anothers() -> None:
    assert measured(4, 3, 1.0).factors(4, (1,), 4, seconds)[0] == [1.0] * 5


def test_a_far_load_tells_nothing() -> None:
    assert measured(64, 3, 1.0).factors(4, CHAIN, 4, seconds)[0] == [1.0] * 5


def test_knowledge_fades_with_rounds_of_other_k() -> None:
    tried = measured(4, 3, 1.0)
    before = tried.rounds(4, CHAIN, 3)
    for _ in range(4 * 500):
        tried.passed(4)
    assert tried.rounds(4, CHAIN, 3) < before / 3

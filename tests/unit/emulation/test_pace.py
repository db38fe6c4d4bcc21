"""Passes end when their time is over, whatever was computed meanwhile."""

from __future__ import annotations

import pytest

from actors.emulation.pace import SPIN_S, Pace, Pacer


class Clock:
    """Time that passes only in `sleep`, at which it wakes a little late."""

    def __init__(self, late_s: float = 20e-6) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []
        self._late_s = late_s

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds + self._late_s


def test_rows_are_free_up_to_the_knee_and_linear_beyond() -> None:
    pace = Pace(0.0714, 64, 0.001)
    assert pace.seconds(0) == pace.seconds(1) == pace.seconds(64) == 0.0714
    assert pace.seconds(74) == pytest.approx(0.0814)


def test_a_pass_ends_on_time_however_much_of_it_was_computing() -> None:
    clock = Clock()
    pacer = Pacer(Pace(0.004, 24, 0.0), clock, clock.sleep)
    for computed_s in (0.0, 0.001, 0.00395):
        began_s = pacer.now()
        clock.now_s += computed_s
        pacer.finish(began_s, 1)
        assert 0 <= clock.now_s - began_s - 0.004 < SPIN_S
    assert pacer.num_late == 0


def test_a_pass_whose_computing_takes_too_long_is_counted_and_not_lengthened() -> None:
    clock = Clock()
    pacer = Pacer(Pace(0.004, 24, 0.0), clock, clock.sleep)
    began_s = pacer.now()
    clock.now_s += 0.01
    pacer.finish(began_s, 1)
    assert clock.slept == []
    assert pacer.num_late == 1

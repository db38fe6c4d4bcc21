"""A wish must last: bursts bring nobody, pauses send nobody away, the last replica goes last. By a set clock."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from cluster.scaling.steady import Delays, Wishes, settle

DELAYS = Delays(up_s=10.0, down_s=30.0, zero_s=60.0)
START = 1.7e9  # a clock like the controller's


def play(wishes: Iterable[int], current: int = 1, tick_s: float = 1.0, delays: Delays = DELAYS) -> list[int]:
    """The number after each tick in which so many were wished for."""
    heard, numbers = Wishes(), []
    for tick, wish in enumerate(wishes):
        now = START + tick * tick_s
        heard = heard.heard(now, wish, 60.0)
        current = settle(heard, now, current, delays)
        numbers.append(current)
    return numbers


def test_more_come_when_they_were_wished_for_all_the_time() -> None:
    numbers = play([3] * 12)
    assert numbers == [1] * 10 + [3] * 2


def test_the_fewest_of_the_time_come() -> None:
    assert play([4, 2] * 10)[-1] == 2


def test_a_burst_brings_nobody() -> None:
    assert set(play([1] * 5 + [3] * 9 + [1] * 20)) == {1}


def test_a_pause_sends_nobody_away() -> None:
    assert set(play([3] * 20 + [1] * 29 + [3] + [1] * 29, current=3)) == {3}


def test_fewer_stay_after_a_lasting_calm() -> None:
    numbers = play([1] * 40, current=3)
    assert numbers[29] == 3
    assert numbers[31] == 1


def test_the_last_one_goes_later_than_the_others() -> None:
    numbers = play([0] * 100, current=3)
    assert numbers[31] == 1
    assert numbers.index(0) == 60


def test_none_becomes_one_at_once() -> None:
    assert play([0, 0, 1], current=0) == [0, 0, 1]


def test_without_delays_the_wish_is_granted() -> None:
    assert play([3, 2, 5], delays=Delays(0.0, 0.0, 0.0)) == [3, 2, 5]


@given(st.lists(st.integers(0, 4), max_size=150), st.integers(1, 4))
def test_what_is_remembered_is_bounded_and_only_wishes_come_true(wishes: list[int], current: int) -> None:
    heard = Wishes()
    for tick, wish in enumerate(wishes):
        now = START + tick
        heard = heard.heard(now, wish, 60.0)
        assert len(heard.runs) <= 62
        number = settle(heard, now, current, DELAYS)
        assert number in {current, 1, *wishes[: tick + 1]}
        current = number

"""A recovery is when the pace is back for good, drafts included."""

from __future__ import annotations

from cluster.bench.chaos.timeline import Pace, Tick, pace, recovery_s

BLOW_S = 10.0


def ticks(*spans: tuple[float, float, int, int]) -> list[Tick]:
    """(from, to, tokens, accepted) of every tenth of a second."""
    return [
        Tick(begin + 0.1 * i, tokens, accepted)
        for begin, end, tokens, accepted in spans for i in range(round((end - begin) * 10))
    ]


BEFORE = (0.05, 10.0, 10, 7)


def test_rates_are_those_of_their_time() -> None:
    assert pace(ticks(BEFORE), 2.0, 4.0) == Pace(100.0, 70.0)


def test_a_pace_that_never_fell_was_never_lost() -> None:
    assert recovery_s(ticks(BEFORE, (10.05, 14.0, 9, 6)), Pace(100.0, 70.0), BLOW_S, 14.0) == 0.0


def test_a_silence_lasts_until_its_end() -> None:
    found = recovery_s(ticks(BEFORE, (13.05, 20.0, 10, 7)), Pace(100.0, 70.0), BLOW_S, 20.0)
    assert found is not None and 2.3 <= found <= 3.1


def test_plain_steps_are_no_recovery() -> None:
    plain = ticks(BEFORE, (10.05, 15.0, 5, 0))
    assert recovery_s(plain, Pace(100.0, 70.0), BLOW_S, 15.0) is None
    back = ticks(BEFORE, (10.05, 15.0, 5, 0), (15.05, 18.0, 10, 7))
    found = recovery_s(back, Pace(100.0, 70.0), BLOW_S, 18.0)
    assert found is not None and 4.0 <= found <= 5.1


def test_a_pace_that_falls_again_was_not_back() -> None:
    twice = ticks(BEFORE, (11.05, 13.0, 10, 7), (16.05, 20.0, 10, 7))
    found = recovery_s(twice, Pace(100.0, 70.0), BLOW_S, 20.0)
    assert found is not None and found > 4.5


def test_what_has_only_just_come_back_may_fall_again() -> None:
    assert recovery_s(ticks(BEFORE, (13.05, 13.5, 10, 7)), Pace(100.0, 70.0), BLOW_S, 13.5) is None

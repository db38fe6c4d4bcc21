"""How long the drafter may take: as long as the pass where that is enough, else until it is done."""

from __future__ import annotations

import math

import pytest

from cluster.coordinator.pace import Pace, committed


def pace(verify_s: float, pass_s: float, transfer_s: float = 0.0, accepted: tuple[int, int] = (10, 9)) -> Pace:
    known = Pace()
    for _ in range(30):
        known.note_verify(verify_s)
        known.note_draft_pass(pass_s)
        known.note_transfer(transfer_s + 1.0, 1.0)
        known.note_check(*accepted)
        known.note_punctual(True)
    return known


def test_nothing_known_is_no_bound() -> None:
    assert Pace().ahead_s(8) == math.inf


def test_a_fast_drafter_ends_before_the_target_needs_the_answer() -> None:
    bound = pace(0.0714, 0.0041, 0.004).ahead_s(12)
    assert 12 * 0.0041 <= bound <= 0.0714 - 2 * 0.004 - 0.0041


def test_a_slow_drafter_is_waited_for_when_deep_branches_are_worth_it() -> None:
    assert pace(0.025, 0.006, accepted=(4, 4)).ahead_s(6) == math.inf


def test_a_slow_drafter_is_cut_short_when_deep_branches_are_worth_little() -> None:
    assert pace(0.025, 0.006, accepted=(4, 1)).ahead_s(12) < 0.025


def test_lateness_makes_the_bound_tighter_until_it_has_passed() -> None:
    known = pace(0.0714, 0.0041)
    before = known.ahead_s(4)
    known.note_punctual(False)
    late = known.ahead_s(4)
    assert late < before
    for _ in range(200):
        known.note_punctual(True)
    assert late < known.ahead_s(4) == pytest.approx(before, rel=1e-2)


@pytest.mark.parametrize(("accepted", "num_tokens", "expected"), [(0.85, 5, 4.15), (0.85, 12, 5.86), (0.5, 1, 1.5)])
def test_committed_tokens_of_a_round_are_the_geometric_sum(accepted: float, num_tokens: int, expected: float) -> None:
    assert committed(accepted, num_tokens) == pytest.approx(expected, abs=0.005)

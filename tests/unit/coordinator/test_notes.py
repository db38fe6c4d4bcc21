"""What the planner is told of a round."""

from __future__ import annotations

import numpy as np

from actors.messages import Draft, Origin, Verdict
from cluster.coordinator.control.plan import PLAIN, Check, Pass
from cluster.coordinator.notes import RoundNotes, check
from cluster.coordinator.request import AheadOutcome


def verdict(num_accepted: int, num_draft: int, path: tuple[int, ...] | None = None) -> Verdict:
    return Verdict(
        np.zeros(num_accepted + 1, np.int32), num_accepted, num_draft, Origin.RECOVERED, draft_seconds=0.02,
        draft_model_seconds=0.01, verify_seconds=0.05, verify_model_seconds=0.04, pass_rows=9, pass_seconds=0.04,
        draft_pass_rows=3, draft_pass_seconds=0.003, path=path,
    )


def test_a_chain_is_checked_as_it_is() -> None:
    assert check(0, 1, verdict(2, 5), None) == Check(0, 1, 5, 2)


def test_of_a_tree_the_chain_of_first_children_counts() -> None:
    comb = Draft(np.zeros(6, np.int32), parents=np.array([-1, -1, 0, 0, 2, 2], np.int32))
    assert check(0, 1, verdict(2, 6, (0, 3)), comb) == Check(0, 1, 3, 1, tree_accepted=2)
    assert check(0, 1, verdict(3, 6, (0, 2, 4)), comb) == Check(0, 1, 3, 3, tree_accepted=3)
    assert check(0, 1, verdict(1, 6, (1,)), comb) == Check(0, 1, 3, 0, tree_accepted=1)


def test_a_report_has_the_passes_and_the_times_of_its_round() -> None:
    notes = RoundNotes()
    notes.judged(0, 1, verdict(2, 5))
    notes.settled(AheadOutcome.MISS)
    report = notes.report(PLAIN, 0.09)
    assert report.passes == (Pass(0, 3, 0.003), Pass(1, 9, 0.04))
    assert (report.round_s, report.below_s, report.verify_model_s) == (0.09, 0.02, 0.04)
    assert report.ahead is not None and not report.ahead.hit
    assert notes.was_missed and not report.used_branch


def test_a_branch_took_no_time_of_the_round_that_verified_it() -> None:
    notes = RoundNotes()
    notes.flew((0,), 1, verdict(2, 5), Draft(np.zeros(5, np.int32)))
    report = notes.report(PLAIN, 0.05)
    assert report.used_branch and report.below_s == 0.0

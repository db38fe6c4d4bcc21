"""What a round's calls told, gathered for the planner."""

from __future__ import annotations

from collections.abc import Sequence

from actors.messages import Draft, Enumeration, Verdict
from cluster.coordinator.control.plan import AheadOutcome, Check, Pass, RoundPlan, RoundReport
from cluster.coordinator.request import AheadOutcome as Became


class RoundNotes:
    """Of one round of one sequence."""

    def __init__(self, *, missed_branch: bool = False) -> None:
        """`missed_branch`: the outcome of the round before was enumerated, and no branch fitted."""
        self.missed_branch = missed_branch
        self._checks: list[Check] = []
        self._passes: list[Pass] = []
        self._verdict: Verdict | None = None  # the target's
        self._used_branch = False
        self._ahead: AheadOutcome | None = None
        self._enumeration = (0.0, 0)  # seconds, longest branch

    def judged(self, lower: int, upper: int, verdict: Verdict, tree: Draft | None = None) -> None:
        """Tier `upper` has verified what `lower` drafted; `tree`: the draft, if it branched."""
        self._verdict = verdict
        if verdict.num_draft:
            self._checks.append(check(lower, upper, verdict, tree))
            if verdict.draft_pass_rows:
                self._passes.append(Pass(lower, verdict.draft_pass_rows, verdict.draft_pass_seconds))
        if verdict.pass_rows:
            self._passes.append(Pass(upper, verdict.pass_rows, verdict.pass_seconds))

    def flew(self, rungs: Sequence[int], target: int, verdict: Verdict, draft: Draft) -> None:
        """The target has verified a branch that it had picked by itself."""
        self._used_branch = True
        self.judged(rungs[0] if rungs else 0, target, verdict, draft if verdict.path is not None else None)

    def enumerated(self, enumeration: Enumeration, wall_s: float) -> None:
        """The drafter has answered with its branches."""
        depth = max((len(branch.draft.tokens) for branch in enumeration.branches), default=0)
        self._enumeration = (wall_s, depth)

    def settled(self, became: Became) -> None:
        """What became of them."""
        self._ahead = AheadOutcome(became is Became.HIT, *self._enumeration)

    @property
    def last_check(self) -> Check | None:
        """The latest verdict on a draft."""
        return self._checks[-1] if self._checks else None

    @property
    def was_missed(self) -> bool:
        """Whether this round's outcome was enumerated and no branch fitted."""
        return self._ahead is not None and not self._ahead.hit

    def report(self, plan: RoundPlan, wall_s: float) -> RoundReport:
        """All of it."""
        verdict = self._verdict
        if verdict is None:
            return RoundReport(plan, wall_s, ahead=self._ahead)
        flew = self._used_branch
        num_passes = max(1, verdict.num_own)  # of a run of plain tokens, what one took
        return RoundReport(
            plan, wall_s / num_passes, tuple(self._checks), tuple(self._passes),
            below_s=0.0 if flew else verdict.draft_seconds, below_model_s=0.0 if flew else verdict.draft_model_seconds,
            verify_s=verdict.verify_seconds / num_passes, verify_model_s=verdict.verify_model_seconds / num_passes,
            ahead=self._ahead, used_branch=flew,
        )


def check(lower: int, upper: int, verdict: Verdict, tree: Draft | None) -> Check:
    """How a draft did; of a tree, how its chain of first children did."""
    if tree is None or tree.parents is None or verdict.path is None:
        return Check(lower, upper, verdict.num_draft, verdict.num_accepted)
    firsts: dict[int, int] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        firsts.setdefault(parent, node)
    chain: list[int] = []
    node = -1
    while node in firsts:
        node = firsts[node]
        chain.append(node)
    num_accepted = 0
    for expected, accepted in zip(chain, verdict.path, strict=False):
        if expected != accepted:
            break
        num_accepted += 1
    return Check(lower, upper, len(chain), num_accepted, tree_accepted=verdict.num_accepted)

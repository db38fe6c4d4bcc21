"""Drafting while the target verifies: an enumeration of the outcomes of one verify pass, and what becomes of it.

The drafter drafts for the likely outcomes (accepted part, next token) of a pass under way, and the enumeration goes on
to the target, which alone knows the outcome and starts on the branch that fits in its very next step: a hit costs
neither drafting time nor a round trip (SSD 2603.03251; PEARL 2408.11850 drafts for one outcome only).
Whatever goes wrong here costs no more than the advantage: the round that follows is an ordinary one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actors.messages import AheadPlan, Branch, Context, Draft, Enumeration, Verdict
from cluster.coordinator.hold import Clock
from cluster.coordinator.request import AheadOutcome
from cluster.coordinator.tier import DraftHandle, Lease


@dataclass(slots=True)
class Flight:
    """A verify pass that the target began by itself, over the branch that fitted."""

    lease: Lease  # of the target
    round: int
    branch: Branch
    verdict: asyncio.Future[Verdict]

    def abandon(self) -> None:
        """Nobody wants its verdict any more."""
        self.verdict.cancel()
        self.verdict.add_done_callback(_seen)


@dataclass(frozen=True, slots=True)
class AheadCall:
    """What is asked of the drafter."""

    context: Context  # the truth when the pass was sent
    draft: DraftHandle | Draft  # what the pass verifies
    verify_round: int  # of the pass
    plan: AheadPlan


class Ahead:
    """One enumeration: asked of the drafter, passed on to the target, and settled when the verdict is there."""

    def __init__(
        self, drafter: Lease, target: Lease, call: AheadCall, next_round: int, clock: Clock,
        on_answer: Callable[[Enumeration, float], None],
    ) -> None:
        """`on_answer(enumeration, wall_s)` is called when the drafter has answered."""
        self._target = target
        self._call = call
        self._next_round = next_round
        self._enumeration: Enumeration | None = None
        self._verdict: asyncio.Future[Verdict] | None = None
        self._task = asyncio.create_task(self._run(drafter, clock, on_answer))

    async def _run(self, drafter: Lease, clock: Clock, on_answer: Callable[[Enumeration, float], None]) -> None:
        call = self._call
        began = clock()
        handle = drafter.enumerate(call.context, call.draft, call.verify_round, call.plan)
        enumeration = await handle.fetch()
        on_answer(enumeration, clock() - began)
        if enumeration.branches:
            self._enumeration = enumeration
            answer = self._target.verify_ahead(self._next_round, call.verify_round, handle)
            self._verdict = asyncio.ensure_future(answer)

    def settle(self, verdict: Verdict) -> tuple[AheadOutcome, Flight | None]:
        """What became of it, now that the verdict of its pass is known."""
        late = not self._task.done()
        self._task.cancel()
        self._task.add_done_callback(_seen)
        if self._verdict is None or self._enumeration is None:
            return (AheadOutcome.LATE if late else AheadOutcome.FAILED), None
        branch = self._enumeration.find(verdict.last_node, int(verdict.tokens[-1]))
        flight = None if branch is None else Flight(self._target, self._next_round, branch, self._verdict)
        if flight is None:
            self._verdict.cancel()
            self._verdict.add_done_callback(_seen)
        return (AheadOutcome.MISS if flight is None else AheadOutcome.HIT), flight

    def abandon(self) -> None:
        """The pass failed, or its sequence has ended."""
        self._task.cancel()
        self._task.add_done_callback(_seen)
        if self._verdict is not None:
            self._verdict.cancel()
            self._verdict.add_done_callback(_seen)


def _seen(outcome: asyncio.Future[Any]) -> None:
    """An abandoned call may fail without a warning."""
    if not outcome.cancelled():
        outcome.exception()

"""What rides ahead of one request's passes: at most one enumeration, and one pass begun by the target itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from actors.messages import Draft, Enumeration, Verdict
from cluster.coordinator.ahead import Ahead, AheadCall, Flight
from cluster.coordinator.control.plan import RoundPlan
from cluster.coordinator.figures import FigureCounter
from cluster.coordinator.hold import Clock, Hold
from cluster.coordinator.notes import RoundNotes
from cluster.coordinator.pace import Pace
from cluster.coordinator.request import AheadOutcome
from cluster.coordinator.sequence import Held, Sequence
from cluster.coordinator.tier import NO_TOKENS, DraftHandle, Lease


class Rider:
    """Has outcomes drafted for, and settles what became of it."""

    def __init__(self, sequence: Sequence, pace: Pace, figures: FigureCounter, clock: Clock, longest_s: float) -> None:
        """No enumeration takes longer than `longest_s`."""
        self._sequence = sequence
        self._pace = pace
        self._figures = figures
        self._clock = clock
        self._longest_s = longest_s
        self._ahead: Ahead | None = None  # for the outcomes of the pass under way
        self._hurries = False  # it is to end in time for the verdict
        self._flight: Flight | None = None  # the pass that the target has begun by itself

    def look_ahead(
        self, plan: RoundPlan, notes: RoundNotes, drafter: Hold, target: Hold, verify_round: int,
        draft: DraftHandle | Draft,
    ) -> None:
        """Have the outcomes of the pass of `verify_round` over `draft` drafted for, if that is possible now."""
        self.give_up()
        ahead = plan.ahead
        longest = len(draft.tokens) if isinstance(draft, Draft) and draft.parents is None else plan.k
        if ahead is None or self._sequence.remaining < longest + 3:
            return  # after a full acceptance come the target's token, a draft, and another token of the target
        if drafter.lease is None or target.lease is None:
            return
        time_s = min(self._pace.ahead_s(ahead.shape.num_tokens), self._longest_s)
        ahead = replace(ahead, time_s=min(ahead.time_s, time_s), acceptance=self._pace.acceptance)
        self._hurries = ahead.time_s < self._longest_s
        context = self._sequence.context(drafter.held, NO_TOKENS)
        answered = partial(self._answered, notes, drafter, drafter.lease, Held(self._sequence.num_tokens))
        self._ahead = Ahead(
            drafter.lease, target.lease, AheadCall(context, draft, verify_round, ahead), self._sequence.next_round(),
            self._clock, answered,
        )

    def _answered(
        self, notes: RoundNotes, drafter: Hold, lease: Lease, held: Held, enumeration: Enumeration, wall_s: float
    ) -> None:
        if drafter.lease is not lease:
            return
        if enumeration.prefix_missing:
            drafter.held = None
        elif enumeration.error is not None:
            self._figures.degrade(drafter.index, "ahead_error", lease.replica_id, enumeration.error)
        else:
            drafter.served(held)
            self._pace.note_transfer(wall_s, enumeration.seconds)
            for branch in enumeration.branches[:1]:
                self._pace.note_draft_pass(branch.draft.pass_seconds)
            notes.enumerated(enumeration, wall_s)

    def settle(self, verdict: Verdict, notes: RoundNotes) -> None:
        """The verdict of the pass under way is known."""
        ahead, self._ahead = self._ahead, None
        if (found := notes.last_check) is not None:
            self._pace.note_check(found.num_draft, found.num_accepted)
        if ahead is not None:
            outcome, self._flight = ahead.settle(verdict)
            self._figures.count_ahead(outcome)
            notes.settled(outcome)
            is_late = outcome is AheadOutcome.LATE
            if outcome is not AheadOutcome.FAILED and (self._hurries or not is_late):
                self._pace.note_punctual(not is_late)

    def take_flight(self) -> Flight | None:
        """The pass that the target has begun by itself, once."""
        flight, self._flight = self._flight, None
        return flight

    def give_up(self) -> None:
        """Nobody wants the enumeration any more."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.abandon()

    def close(self) -> None:
        """Nor the pass."""
        self.give_up()
        if (flight := self.take_flight()) is not None:
            flight.abandon()

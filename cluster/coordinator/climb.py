"""One request's way up the ladder, round by round: propose, verify in each tier, and let the target decide."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from actors.messages import Context, Draft, DraftShape, Ids, Verdict
from actors.sampling.params import VerifyMode
from cluster.coordinator.ahead import Flight
from cluster.coordinator.call import CallBounds, verdict_within, verify_within
from cluster.coordinator.control.plan import PLAIN, Reason, RoundPlan
from cluster.coordinator.courier import Courier
from cluster.coordinator.errors import DeadlinePassed, DraftLate, FailureCode, GenerationFailed, ReplicaLate
from cluster.coordinator.figures import FigureCounter
from cluster.coordinator.hold import ASLEEP, Clock, Hold
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.notes import RoundNotes
from cluster.coordinator.request import GenerationRequest, TokenEvent
from cluster.coordinator.rider import Rider
from cluster.coordinator.runs import run_tokens
from cluster.coordinator.sequence import Held, Sequence
from cluster.coordinator.tier import (
    NO_TOKENS,
    DraftHandle,
    DraftLost,
    NoReplica,
    NoRoom,
    PoolFull,
    ReplicaLost,
    announce,
)

Piece = DraftHandle | Draft
NO_DRAFT = Draft(NO_TOKENS)
FEW_REQUESTS = 4  # so few are answered sooner; more share their passes, and each pays for the messages of all
_ALL_FULL = "every replica of the target model is full: retry later or add replicas"


@dataclass(slots=True)
class _Proposal:
    """The draft under way: at most one exists, and it is always the last piece of a round."""

    hold: Hold
    handle: DraftHandle
    context: Context
    held: Held  # what the replica holds once the draft is known to have been made


class Climb:
    """One request's way up the ladder: its leases and its rounds."""

    def __init__(self, ladder: Ladder, request: GenerationRequest, sequence: Sequence,
                 figures: FigureCounter, clock: Clock) -> None:
        self._ladder = ladder
        self._settings = ladder.settings
        self._request = request
        self._sequence = sequence
        self._figures = figures
        self._clock = clock
        self._holds = [
            Hold(tier, index, sequence, ladder.settings, clock, figures, ladder.is_asleep)
            for index, tier in enumerate(ladder.tiers)
        ]
        self._want_laws = request.sampling.mode in (VerifyMode.REJECTION, VerifyMode.BLOCK)
        self._planner = ladder.planner(request)
        self._control = self._planner.open(request.sampling.mode.value)
        self._plan = PLAIN  # of this round
        self._notes = RoundNotes()  # of this round
        self._proposal: _Proposal | None = None
        self._rider = Rider(sequence, ladder.pace, figures, clock, ladder.settings.draft_timeout_s)
        self._courier = Courier(ladder.feature_window) if ladder.sends_features else None
        self._sent_at = 0.0  # when the latest pass of the target was
        self._degraded = False  # in this round
        self._lacked: set[int] = set()  # tiers that did not serve this round
        self._num_target_losses = 0
        ladder.open_requests.num += 1
        self._is_open = True

    @property
    def holds(self) -> Seq[Hold]:
        """One hold per tier."""
        return self._holds

    async def enter(self) -> None:
        """Lease a replica of every tier, as far as there is one soon: what is waited for here is no round's time.

        Raises `GenerationFailed` when the target cannot serve, `DeadlinePassed`.
        """
        began = self._clock()
        try:
            self._left_s()
            await self._reach_target()
            if self._request.lookahead != 0 and self._sequence.remaining > 1:
                for hold in self._holds[:-1]:
                    if not hold.sleeps():
                        await hold.poll()
        finally:
            self._figures.lease_s = self._clock() - began

    async def round(self) -> Verdict:
        """One round: a good verdict of the target with at least one token.

        Raises `GenerationFailed` when the target cannot serve, `DeadlinePassed`.
        """
        self._left_s()
        await self._reach_target()
        self._degraded = False
        self._lacked.clear()
        self._notes = RoundNotes(missed_branch=self._notes.was_missed)
        self._plan = plan = await self._make_plan()
        flight = self._rider.take_flight()
        if flight is not None and (verdict := await self._fly(flight)) is not None:
            return self._landed(verdict, wanted=True)
        budget = self._sequence.remaining - 1  # the target itself adds one token
        wanted = bool(plan.rungs) and budget > 0
        if wanted and self._notes.missed_branch:
            budget = min(budget, plan.k_after_miss)
        pieces = await self._gather(len(plan.rungs) - 1, NO_TOKENS, budget) if wanted else []
        verdict = await self._verify_target(pieces)
        if wanted and verdict.num_draft == 0 and self._degraded:
            self._figures.degraded_steps += 1
        return self._landed(verdict, wanted)

    def observe(self, verdict: Verdict, event: TokenEvent, wall_s: float) -> None:
        """The round's verdict is committed, and came to `event`."""
        self._figures.end_round(verdict, event)
        self._planner.observe(self._control, self._notes.report(self._plan, wall_s), self._clock())

    async def _make_plan(self) -> RoundPlan:
        if self._request.lookahead is None:  # what is leased matters to the controller
            for hold in self._holds[:-1]:
                if not hold.sleeps():
                    await hold.poll()
            for hold in self._holds:
                # As if a sleeping pool were leased: what the controller knows of it says whether to wake it up.
                nobody = ASLEEP if hold is not self._holds[-1] and hold.sleeps() else None
                self._planner.leased(self._control, hold.index, hold.lease.replica_id if hold.lease else nobody)
        remaining = self._sequence.remaining
        plan = self._planner.plan(self._control, self._clock(), remaining, self._sequence.num_tokens + remaining)
        if plan.reason in (Reason.PROBE, Reason.TRIAL) and any(self._holds[rung].sleeps() for rung in plan.rungs):
            return PLAIN  # not worth waking anybody up for
        return plan

    # --- while the target verifies ----------------------------------------------------------------

    async def _fly(self, flight: Flight) -> Verdict | None:
        """The verdict of a pass that began by itself; None when the target could not do it after all."""
        target = self._holds[-1]
        if flight.lease is not target.lease:  # it drains: the next round goes to its successor
            flight.abandon()
            return None
        self._look_ahead(flight.round, flight.branch.draft)
        try:
            bounds = self._bounds(target, NO_TOKENS, None)
            verdict = await verdict_within(flight.verdict, bounds.within(bounds.verify_s))
        except DeadlinePassed:
            raise
        except Exception as error:  # whatever broke it, an ordinary round does not need it
            self._rider.give_up()
            if isinstance(error, ReplicaLost) and not isinstance(error, NoRoom):
                self._lose_target(error)
                await self._reach_target()
            else:
                self._figures.degrade(target.index, "ahead_refused", target.lease.replica_id, type(error).__name__)
            return None
        if verdict.missed or verdict.prefix_missing:
            self._rider.give_up()
            self._figures.degrade(target.index, "ahead_refused")
            return None
        self._check(verdict, target.index)
        target.served(Held(self._sequence.num_tokens))
        self._notes.flew(self._plan.rungs, target.index, verdict, flight.branch.draft)
        # The draft was made while the pass before this one ran: it took none of this round's time.
        return replace(verdict, draft_seconds=0.0, draft_model_seconds=0.0)

    def _look_ahead(self, verify_round: int, draft: DraftHandle | Draft) -> None:
        if self._plan.ahead is not None and len(self._plan.rungs) == 1:
            drafter = self._holds[self._plan.rungs[0]]
            self._rider.look_ahead(self._plan, self._notes, drafter, self._holds[-1], verify_round, draft)

    def _landed(self, verdict: Verdict, wanted: bool) -> Verdict:
        """The verdict of the round; `wanted`: it was to have a draft."""
        self._rider.settle(verdict, self._notes)
        demand, rungs = self._ladder.demand, self._plan.rungs
        if wanted and len(rungs) == 1 and demand.was_slow(rungs[0], verdict):
            self._lacked.add(rungs[0])
        demand.count(rungs if wanted else (), self._lacked)
        return verdict

    # --- below the target -------------------------------------------------------------------------

    async def _gather(self, level: int, pending: Ids, budget: int) -> list[Piece]:
        """Pieces of at most `budget` tokens that rung `level` (or the nearest below it) puts after `pending`.

        The budget is known before anything is drawn, so it may limit how much is drafted.
        """
        if level < 0 or budget < 1:
            return []
        hold = self._holds[self._plan.rungs[level]]
        lease = await hold.poll()
        if lease is None:
            self._degraded = True
            self._lacked.add(hold.index)
            if hold.asleep:
                self._figures.count_asleep(hold.index)
            return await self._gather(level - 1, pending, budget)
        if level == 0:
            return self._propose(hold, pending, budget)
        pieces: list[Piece] = []
        window = self._plan.windows[level - 1]
        while window > 0 and budget > 0:
            below = await self._gather(level - 1, pending, budget - 1)
            verdict = await self._verify_middle(hold, pending, below)
            if verdict is None:
                return [*pieces, *below]  # what rung `level - 1` drafted serves the tier above directly
            self._notes.judged(self._plan.rungs[level - 1], hold.index, verdict)
            pieces.append(verdict.as_draft())
            pending = np.concatenate([pending, verdict.tokens])
            window -= len(verdict.tokens)
            budget -= len(verdict.tokens)
            if not self._request.stop_ids.isdisjoint(verdict.tokens.tolist()):
                break  # nothing after it can be committed; the piece itself is passed on whole
        return pieces

    def _propose(self, hold: Hold, pending: Ids, budget: int) -> list[Piece]:
        assert hold.lease is not None
        context = self._sequence.context(hold.held, pending)
        if self._courier is not None:
            loaded = self._courier.load(context, knows_sequence=hold.held is not None)
            if loaded is None:
                return []
            context = loaded
        try:
            handle = hold.lease.propose(context, within(self._plan.shape or DraftShape(self._plan.k), budget))
        except ReplicaLost:
            self._drop(hold, "replica_lost", lost=True)
            return []
        except Exception as error:  # a draft is a convenience: whatever breaks it, the request goes on
            self._drop(hold, "error", lost=False, detail=type(error).__name__)
            return []
        self._proposal = _Proposal(hold, handle, context, Held(self._sequence.num_tokens, pending))
        return [handle]

    async def _verify_middle(self, hold: Hold, pending: Ids, pieces: list[Piece]) -> Verdict | None:
        """A good verdict of a middle tier, or None when it did not serve; late drafts leave `pieces`."""
        try:
            verdict = await self._verify(hold, pending, pieces, want_laws=self._want_laws)
        except ReplicaLost as error:
            self._drop_replica(hold, error)
            return None
        except DeadlinePassed:
            raise
        except GenerationFailed as error:
            self._drop(hold, "error", lost=False, detail=str(error))
            return None
        except Exception as error:  # as with a draft: the tiers around it can do without
            self._drop(hold, "error", lost=False, detail=type(error).__name__)
            return None
        return verdict

    # --- the target -------------------------------------------------------------------------------

    async def _reach_target(self) -> None:
        """Make sure that the target is leased. Raises `GenerationFailed`, `DeadlinePassed`."""
        target = self._holds[-1]
        if target.lease is not None:
            await target.poll()  # moves on when the replica drains
            return
        if not target.ever_leased and self._request.lookahead != 0:
            for hold in self._holds[:-1]:
                hold.start()  # all pools are asked at once
        wait_s, left_s = self._settings.target_wait_s, self._left_s()
        try:
            await target.acquire(wait_s if left_s is None else min(wait_s, left_s))
        except PoolFull as error:
            self._left_s()
            raise GenerationFailed(_ALL_FULL, FailureCode.EXHAUSTED) from error
        except NoReplica as error:
            self._left_s()
            code = FailureCode.UNAVAILABLE if target.ever_leased else FailureCode.EXHAUSTED
            raise GenerationFailed(
                f"no replica of the target model became free within {wait_s:.1f} s: "
                "retry later or add replicas", code,
            ) from error

    async def _verify_target(self, pieces: list[Piece]) -> Verdict:
        target, step = self._holds[-1], None
        if self._ladder.target_drafts and self._request.lookahead and self._sequence.remaining > 1:
            step = self._settings.shape(min(self._request.lookahead, self._sequence.remaining - 1))
        while True:
            try:
                return await self._verify(target, NO_TOKENS, pieces, want_laws=False, step=step)
            except ReplicaLost as error:
                self._lose_target(error)
                # The same drafts may be checked again elsewhere: the loss did not depend on them.
                await self._reach_target()
            except (GenerationFailed, DeadlinePassed):
                raise
            except Exception as error:
                raise GenerationFailed(
                    "the target replica failed on this request: its log holds the details"
                ) from error

    def _lose_target(self, error: ReplicaLost) -> None:
        """Give the replica up. Raises `GenerationFailed` when this has happened too often."""
        self._num_target_losses += 1
        self._drop_replica(self._holds[-1], error)
        if self._num_target_losses > self._settings.max_target_moves:
            if isinstance(error, NoRoom):
                raise GenerationFailed(_ALL_FULL, FailureCode.EXHAUSTED) from error
            raise GenerationFailed(
                f"the target replica was lost {self._num_target_losses} times during this request: "
                "retry, and see the target pool's logs", FailureCode.UNAVAILABLE,
            ) from error

    # --- both -------------------------------------------------------------------------------------

    async def _verify(
        self, hold: Hold, pending: Ids, pieces: list[Piece], *, want_laws: bool, step: DraftShape | None = None
    ) -> Verdict:
        """A good verdict of `hold`. A draft that is late or lost is taken out of `pieces` and done without.

        `step`: what the tier's own process is to draft, instead of `pieces`.

        Raises `ReplicaLost`, `GenerationFailed` (the model cannot go on), `DeadlinePassed`.
        """
        while True:
            lease = hold.lease
            if lease is None:
                raise ReplicaLost(f"tier {hold.index} has no replica")
            context = self._sequence.context(hold.held, pending)
            if hold is self._holds[-1]:
                context = self._asked_of_target(context, pieces)
            proposal = self._proposal if pieces and not isinstance(pieces[-1], Draft) else None
            on_sent = partial(self._sent, context.round, pieces) if hold is self._holds[-1] else _nothing
            if step is None:
                call = partial(lease.verify, context, *pieces, want_laws=want_laws)
            else:
                call = partial(lease.step, context, step)
            if len(pieces) == 1 and proposal is not None and self._ladder.open_requests.num <= FEW_REQUESTS:
                announce(lease, context, proposal.handle, want_laws=want_laws)
            try:
                verdict = await verify_within(
                    call, proposal.handle if proposal else None, self._bounds(hold, context.tokens, proposal), on_sent,
                )
            except DraftLost as error:
                if not pieces:
                    raise ReplicaLost(f"tier {hold.index} lost a draft it was not given") from error
                hold.uncertain()
                pieces.pop()
                if proposal is not None:
                    late = isinstance(error, DraftLate)
                    self._drop(proposal.hold, "late" if late else "draft_lost", lost=not late)
                continue
            if verdict.prefix_missing:
                if context.start == 0:
                    raise ReplicaLost(f"tier {hold.index} misses a prefix although it was sent all tokens")
                hold.held = None
                continue
            self._check(verdict, hold.index, context.num_plain)
            hold.served(Held(context.num_committed, pending))
            if hold is self._holds[-1]:
                self._ladder.pace.note_verify(self._clock() - self._sent_at)
                if verdict.draft_pass_seconds:
                    self._ladder.pace.note_draft_pass(verdict.draft_pass_seconds)
            self._figures.note_cached(hold.index, verdict.num_cached_tokens)
            if proposal is not None:
                await self._note_draft(verdict, pieces, proposal)
            if hold is self._holds[-1]:
                if self._courier is not None:
                    self._courier.collect(verdict)
                tree = None
                if verdict.path is not None and proposal is not None:
                    tree = await proposal.handle.fetch()  # the verifier had it, so it is here
                self._notes.judged(self._plan.rungs[-1] if self._plan.rungs else 0, hold.index, verdict, tree)
            return verdict

    def _asked_of_target(self, context: Context, pieces: list[Piece]) -> Context:
        """With what is wanted of the target beside its verdict on `pieces`."""
        if self._courier is not None:
            return self._courier.asks(context)
        if pieces or self._plan.rungs:
            return context
        most, sequence = self._settings.plain_tokens, self._sequence
        num_plain = run_tokens(most, self._ladder.open_requests.num, sequence.remaining)
        for _ in range(1, num_plain):
            sequence.next_round()  # each of its passes has noise of its own
        return replace(context, num_plain=num_plain) if num_plain > 1 else context

    def _sent(self, verify_round: int, pieces: list[Piece]) -> None:
        """A pass of the target is on its way."""
        self._sent_at = self._clock()
        if len(pieces) <= 1:
            self._look_ahead(verify_round, pieces[0] if pieces else NO_DRAFT)

    async def _note_draft(self, verdict: Verdict, pieces: list[Piece], proposal: _Proposal) -> None:
        """Learn from a verdict what became of the draft, whose payload is read only when that is not enough."""
        hold = proposal.hold
        self._proposal = None
        came_empty = verdict.num_draft <= sum(len(piece.tokens) for piece in pieces if isinstance(piece, Draft))
        if came_empty:
            pieces.pop()  # nothing in it to feed to another tier
        if verdict.draft_error is not None:
            self._degraded = True
            if came_empty and proposal.context.start == 0:
                self._drop(hold, "draft_error", lost=False, detail=verdict.draft_error)
                return
            self._figures.degrade(hold.index, "draft_error", detail=verdict.draft_error)
            if not came_empty:  # a tier below it failed, and it did without
                hold.served(proposal.held)
                return
            hold.held = None  # whatever it was, name everything next time
            return
        if came_empty or not self._figures.knows_cached(hold.index):
            draft = await proposal.handle.fetch()  # the verifier had it, so it is here
            if self._courier is not None:
                self._courier.refused(draft)
            if draft.prefix_missing:
                hold.held = None
                return
            self._figures.note_cached(hold.index, draft.num_cached_tokens)
        if self._courier is not None and not came_empty:
            self._courier.delivered()
        hold.served(proposal.held)  # also when it had nothing to propose: it has read the context

    def _check(self, verdict: Verdict, index: int, num_plain: int = 1) -> None:
        if verdict.error is not None:
            raise GenerationFailed(
                f"the model of tier {index} cannot go on with this request: {verdict.error}",
                FailureCode.INVALID if verdict.rejected else FailureCode.INTERNAL,
            )
        most_own = 1 if verdict.num_draft else num_plain
        if not 1 <= verdict.num_own <= most_own or verdict.num_accepted > verdict.num_draft:
            raise GenerationFailed(
                f"tier {index} answered {len(verdict.tokens)} tokens for {verdict.num_accepted} accepted of "
                f"{verdict.num_draft} drafted: check that all pools run the same version"
            )

    def _drop_replica(self, hold: Hold, error: ReplicaLost) -> None:
        late, full = isinstance(error, ReplicaLate), isinstance(error, NoRoom)
        is_target = hold is self._holds[-1]
        lost = not full and (is_target or not late)
        self._drop(hold, "late" if late else "full" if full else "replica_lost", lost=lost)

    def _drop(self, hold: Hold, reason: str, *, lost: bool, detail: str | None = None) -> None:
        self._degraded = True
        self._lacked.add(hold.index)
        if self._proposal is not None and self._proposal.hold is hold:
            self._proposal = None
        hold.drop(reason, lost=lost, detail=detail)

    def _bounds(self, hold: Hold, sent: Ids, proposal: _Proposal | None) -> CallBounds:
        settings = self._settings

        def bound(tokens: Ids) -> float:
            return settings.draft_timeout_s + settings.catch_up_token_s * len(tokens)

        is_target = hold is self._holds[-1]
        return CallBounds(
            draft_s=bound(proposal.context.tokens) if proposal else 0.0,
            verify_s=settings.verify_timeout_s if is_target else bound(sent),
            deadline=self._request.deadline, clock=self._clock,
        )

    def _left_s(self) -> float | None:
        return CallBounds(0.0, 0.0, self._request.deadline, self._clock).left_s()

    async def close(self) -> None:
        """Give every lease back, whatever happens to the others. Idempotent."""
        if self._is_open:
            self._is_open = False
            self._ladder.open_requests.num -= 1
        self._planner.close(self._control)
        self._rider.close()
        await asyncio.gather(*(hold.close() for hold in self._holds), return_exceptions=True)


def _nothing() -> None:
    """Nobody looks ahead of a middle tier."""


def within(shape: DraftShape, budget: int) -> DraftShape:
    """The shape with no path longer than `budget`."""
    if shape.num_tokens <= budget:
        return shape
    return replace(shape, num_tokens=budget, widths=shape.widths[:budget])

"""The ladder: a fold over tiers in which each verdict is the next tier's draft.

Tier 0 proposes k tokens. Each middle tier verifies rounds of the tier below until it has collected its
window, then the tier above verifies the concatenation. This is cascaded speculative decoding (Chen et
al. 2024, "Cascade Speculative Drafting", sections 3-4, in its sequential form), exact because a verdict's
tokens are distributed as its tier's model. When to stop collecting is decided before the next token is
drawn, and collected pieces are never shortened: that is what keeps the law.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from actors.messages import Context, Draft, DraftShape, Ids, Verdict
from actors.sampling.params import VerifyMode
from cluster.coordinator.call import CallBounds, verify_within
from cluster.coordinator.errors import DeadlinePassed, DraftLate, FailureCode, GenerationFailed, ReplicaLate
from cluster.coordinator.figures import FigureCounter
from cluster.coordinator.hold import Clock, Hold
from cluster.coordinator.request import GenerationRequest
from cluster.coordinator.sequence import Held, Sequence
from cluster.coordinator.settings import CoordinatorSettings
from cluster.coordinator.tier import NO_TOKENS, DraftHandle, DraftLost, NoReplica, PoolFull, ReplicaLost, Tier

Piece = DraftHandle | Draft


@dataclass(frozen=True, slots=True)
class Ladder:
    """The tiers of one service, from the cheapest to the target, shared by all requests.

    `windows[i]` is how many verified tokens middle tier `i + 1` collects before the next tier runs.
    """

    tiers: Seq[Tier]
    windows: Seq[int] = ()
    settings: CoordinatorSettings = field(default_factory=CoordinatorSettings)

    def __post_init__(self) -> None:
        num_middle = max(0, len(self.tiers) - 2)
        if not self.tiers:
            raise ValueError("the ladder has no tiers: give at least the target")
        if len(self.windows) != num_middle:
            raise ValueError(
                f"{len(self.tiers)} tiers need {num_middle} windows (one per middle tier), "
                f"not {len(self.windows)}"
            )
        if any(window < 1 for window in self.windows):
            raise ValueError(f"windows {tuple(self.windows)} must all be at least 1 token")


@dataclass(slots=True)
class _Proposal:
    """The draft under way: at most one exists, and it is always the last piece of a round."""

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
            Hold(tier, index, sequence, ladder.settings, clock, figures)
            for index, tier in enumerate(ladder.tiers)
        ]
        self._want_laws = request.sampling.mode in (VerifyMode.REJECTION, VerifyMode.BLOCK)
        self._proposal: _Proposal | None = None
        self._degraded = False  # in this round
        self._num_target_losses = 0

    @property
    def holds(self) -> Seq[Hold]:
        """One hold per tier."""
        return self._holds

    async def round(self) -> Verdict:
        """One round: a good verdict of the target with at least one token.

        Raises `GenerationFailed` when the target cannot serve, `DeadlinePassed`.
        """
        self._left_s()
        await self._reach_target()
        self._degraded = False
        budget = self._sequence.remaining - 1  # the target itself adds one token
        wanted = self._request.lookahead > 0 and budget > 0 and len(self._holds) > 1
        pieces = await self._gather(len(self._holds) - 2, NO_TOKENS, budget) if wanted else []
        verdict = await self._verify_target(pieces)
        if wanted and verdict.num_draft == 0 and self._degraded:
            self._figures.degraded_steps += 1
        return verdict

    # --- below the target -------------------------------------------------------------------------

    async def _gather(self, level: int, pending: Ids, budget: int) -> list[Piece]:
        """Pieces of at most `budget` tokens that tier `level` (or the nearest below it) puts after `pending`.

        The budget is known before anything is drawn, so it may limit how much is drafted.
        """
        if level < 0 or budget < 1:
            return []
        hold = self._holds[level]
        lease = await hold.poll()
        if lease is None:
            self._degraded = True
            return await self._gather(level - 1, pending, budget)
        if level == 0:
            return self._propose(pending, budget)
        pieces: list[Piece] = []
        window = self._ladder.windows[level - 1]
        while window > 0 and budget > 0:
            below = await self._gather(level - 1, pending, budget - 1)
            verdict = await self._verify_middle(hold, pending, below)
            if verdict is None:
                return [*pieces, *below]  # what tier `level - 1` drafted serves the tier above directly
            pieces.append(verdict.as_draft())
            pending = np.concatenate([pending, verdict.tokens])
            window -= len(verdict.tokens)
            budget -= len(verdict.tokens)
            if not self._request.stop_ids.isdisjoint(verdict.tokens.tolist()):
                break  # nothing after it can be committed; the piece itself is passed on whole
        return pieces

    def _propose(self, pending: Ids, budget: int) -> list[Piece]:
        hold = self._holds[0]
        assert hold.lease is not None
        context = self._sequence.context(hold.held, pending)
        try:
            handle = hold.lease.propose(context, DraftShape(min(self._request.lookahead, budget)))
        except ReplicaLost:
            self._drop(hold, "replica_lost", lost=True)
            return []
        except Exception as error:  # a draft is a convenience: whatever breaks it, the request goes on
            self._drop(hold, "error", lost=False, detail=type(error).__name__)
            return []
        self._proposal = _Proposal(handle, context, Held(self._sequence.num_tokens, pending))
        return [handle]

    async def _verify_middle(self, hold: Hold, pending: Ids, pieces: list[Piece]) -> Verdict | None:
        """A good verdict of a middle tier, or None when it did not serve; late drafts leave `pieces`."""
        try:
            verdict = await self._verify(hold, pending, pieces, want_laws=self._want_laws)
        except ReplicaLost as error:
            late = isinstance(error, ReplicaLate)
            self._drop(hold, "late" if late else "replica_lost", lost=not late)
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
        wait_s, left_s = self._settings.target_wait_s, self._left_s()
        try:
            await target.acquire(wait_s if left_s is None else min(wait_s, left_s))
        except PoolFull as error:
            self._left_s()
            raise GenerationFailed(
                "every replica of the target model is full: retry later or add replicas", FailureCode.EXHAUSTED
            ) from error
        except NoReplica as error:
            self._left_s()
            code = FailureCode.UNAVAILABLE if target.ever_leased else FailureCode.EXHAUSTED
            raise GenerationFailed(
                f"no replica of the target model became free within {wait_s:.1f} s: "
                "retry later or add replicas", code,
            ) from error

    async def _verify_target(self, pieces: list[Piece]) -> Verdict:
        target = self._holds[-1]
        while True:
            try:
                return await self._verify(target, NO_TOKENS, pieces, want_laws=False)
            except ReplicaLost as error:
                self._num_target_losses += 1
                self._drop(target, "late" if isinstance(error, ReplicaLate) else "replica_lost", lost=True)
                if self._num_target_losses > self._settings.max_target_moves:
                    raise GenerationFailed(
                        f"the target replica was lost {self._num_target_losses} times during this request: "
                        "retry, and see the target pool's logs", FailureCode.UNAVAILABLE,
                    ) from error
                # The same drafts may be checked again elsewhere: the loss did not depend on them.
                await self._reach_target()
            except (GenerationFailed, DeadlinePassed):
                raise
            except Exception as error:
                raise GenerationFailed(
                    f"the target replica answered {type(error).__name__}: see the target pool's logs"
                ) from error

    # --- both -------------------------------------------------------------------------------------

    async def _verify(self, hold: Hold, pending: Ids, pieces: list[Piece], *, want_laws: bool) -> Verdict:
        """A good verdict of `hold`. A draft that is late or lost is taken out of `pieces` and done without.

        Raises `ReplicaLost`, `GenerationFailed` (the model cannot go on), `DeadlinePassed`.
        """
        while True:
            lease = hold.lease
            if lease is None:
                raise ReplicaLost(f"tier {hold.index} has no replica")
            context = self._sequence.context(hold.held, pending)
            proposal = self._proposal if pieces and not isinstance(pieces[-1], Draft) else None
            try:
                verdict = await verify_within(
                    lease, context, pieces, want_laws, proposal.handle if proposal else None,
                    self._bounds(hold, context, proposal),
                )
            except DraftLost as error:
                if not pieces:
                    raise ReplicaLost(f"tier {hold.index} lost a draft it was not given") from error
                hold.uncertain()
                pieces.pop()
                if proposal is not None:
                    late = isinstance(error, DraftLate)
                    self._drop(self._holds[0], "late" if late else "draft_lost", lost=not late)
                continue
            if verdict.prefix_missing:
                if context.start == 0:
                    raise ReplicaLost(f"tier {hold.index} misses a prefix although it was sent all tokens")
                hold.held = None
                continue
            self._check(verdict, hold.index)
            hold.served(Held(context.num_committed, pending))
            self._figures.note_cached(hold.index, verdict.num_cached_tokens)
            if proposal is not None:
                await self._note_draft(verdict, pieces, proposal)
            return verdict

    async def _note_draft(self, verdict: Verdict, pieces: list[Piece], proposal: _Proposal) -> None:
        """Learn from a verdict what became of the draft, whose payload is read only when that is not enough."""
        hold = self._holds[0]
        self._proposal = None
        came_empty = verdict.num_draft <= sum(len(piece.tokens) for piece in pieces if isinstance(piece, Draft))
        if came_empty:
            pieces.pop()  # nothing in it to feed to another tier
        if verdict.draft_error is not None:
            self._degraded = True
            if proposal.context.start == 0:
                self._drop(hold, "draft_error", lost=False, detail=verdict.draft_error)
                return
            self._figures.degrade(0, "draft_error", detail=verdict.draft_error)
            hold.held = None  # whatever it was, name everything next time
            return
        if came_empty or not self._figures.knows_cached(0):
            draft = await proposal.handle.fetch()  # the verifier had it, so it is here
            if draft.prefix_missing:
                hold.held = None
                return
            self._figures.note_cached(0, draft.num_cached_tokens)
        hold.served(proposal.held)  # also when it had nothing to propose: it has read the context

    def _check(self, verdict: Verdict, index: int) -> None:
        if verdict.error is not None:
            raise GenerationFailed(
                f"the model of tier {index} cannot go on with this request: {verdict.error}"
            )
        if len(verdict.tokens) != verdict.num_accepted + 1 or verdict.num_accepted > verdict.num_draft:
            raise GenerationFailed(
                f"tier {index} answered {len(verdict.tokens)} tokens for {verdict.num_accepted} accepted of "
                f"{verdict.num_draft} drafted: check that all pools run the same version"
            )

    def _drop(self, hold: Hold, reason: str, *, lost: bool, detail: str | None = None) -> None:
        self._degraded = True
        if hold.index == 0:
            self._proposal = None
        hold.drop(reason, lost=lost, detail=detail)

    def _bounds(self, hold: Hold, context: Context, proposal: _Proposal | None) -> CallBounds:
        settings = self._settings

        def bound(sent: Context) -> float:
            return settings.draft_timeout_s + settings.catch_up_token_s * len(sent.tokens)

        is_target = hold is self._holds[-1]
        return CallBounds(
            draft_s=bound(proposal.context) if proposal else 0.0,
            verify_s=settings.verify_timeout_s if is_target else bound(context),
            deadline=self._request.deadline, clock=self._clock,
        )

    def _left_s(self) -> float | None:
        return CallBounds(0.0, 0.0, self._request.deadline, self._clock).left_s()

    async def close(self) -> None:
        """Give every lease back, whatever happens to the others."""
        await asyncio.gather(*(hold.close() for hold in self._holds), return_exceptions=True)

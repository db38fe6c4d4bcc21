"""When each call of one request's rounds began and ended, for whoever wants to see it: the live page.

The ladder of such a request has tiers and leases that note their calls and pass them on unchanged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from actors.messages import AheadPlan, Context, Draft, DraftShape, Ids, Verdict
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.tier import NO_TOKENS, DraftHandle, EnumerationHandle, Lease, Tier

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One call, queue and hop included. Seconds since the request began."""

    tier: int
    kind: str  # propose, enumerate, verify, step, verify_ahead
    began_s: float
    ended_s: float


class CallLog:
    """Calls of one request that have ended and were not taken yet."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._origin_s = clock()
        self._calls: list[TimedCall] = []
        self._decided_s: dict[int, float] = {}  # when each tier's latest verdict came

    def now_s(self) -> float:
        """Seconds since the request began."""
        return self._clock() - self._origin_s

    def took(self, tier: int, kind: str, began_s: float) -> None:
        """A draft has come."""
        self._calls.append(TimedCall(tier, kind, began_s, self.now_s()))

    def decided(self, tier: int, kind: str, began_s: float) -> None:
        """A verdict has come. A tier verifies a sequence's drafts one after the other, however early it was asked."""
        began_s = max(began_s, self._decided_s.get(tier, 0.0))
        self.took(tier, kind, began_s)
        self._decided_s[tier] = self.now_s()

    def take(self) -> list[TimedCall]:
        """Those since the last time."""
        calls, self._calls = self._calls, []
        return calls


def timed(ladder: Ladder, log: CallLog) -> Ladder:
    """The same ladder for one request, whose calls `log` gets."""
    return replace(ladder, tiers=[_TimedTier(tier, index, log) for index, tier in enumerate(ladder.tiers)])


class _TimedTier:
    def __init__(self, tier: Tier, index: int, log: CallLog) -> None:
        self._tier = tier
        self._index = index
        self._log = log

    async def lease(
        self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS
    ) -> _TimedLease:
        return _TimedLease(await self._tier.lease(sequence_id, avoid, tokens), self._index, self._log)


class _TimedLease:
    def __init__(self, lease: Lease, tier: int, log: CallLog) -> None:
        self._lease = lease
        self._tier = tier
        self._log = log

    @property
    def replica_id(self) -> str:
        return self._lease.replica_id

    @property
    def revoked(self) -> bool:
        return self._lease.revoked

    def propose(self, context: Context, shape: DraftShape) -> DraftHandle:
        handle = self._lease.propose(context, shape)
        self._watch("propose", handle)
        return handle

    def enumerate(
        self, context: Context, draft: DraftHandle | Draft, verify_round: int, plan: AheadPlan
    ) -> EnumerationHandle:
        handle = self._lease.enumerate(context, draft, verify_round, plan)
        self._watch("enumerate", handle)
        return handle

    async def verify(self, context: Context, *drafts: DraftHandle | Draft, want_laws: bool) -> Verdict:
        began_s = self._log.now_s()

        def come(payload: asyncio.Future[bytes]) -> None:
            nonlocal began_s
            began_s = self._log.now_s()  # only now the call is on its way

        for draft in drafts:
            payload: asyncio.Future[bytes] | None = getattr(draft, "payload", None)
            if payload is not None and not payload.done():
                payload.add_done_callback(come)
        verdict = await self._lease.verify(context, *drafts, want_laws=want_laws)
        self._log.decided(self._tier, "verify", began_s)
        return verdict

    async def step(self, context: Context, shape: DraftShape) -> Verdict:
        return await self._within("step", self._lease.step(context, shape))

    async def verify_ahead(self, round: int, verify_round: int, enumeration: EnumerationHandle) -> Verdict:
        return await self._within("verify_ahead", self._lease.verify_ahead(round, verify_round, enumeration))

    async def release(self, held: Ids | None = None) -> None:
        await self._lease.release(held)

    async def _within(self, kind: str, call: Awaitable[Verdict]) -> Verdict:
        began_s = self._log.now_s()
        verdict = await call
        if not verdict.missed:  # else there was no pass
            self._log.decided(self._tier, kind, began_s)
        return verdict

    def _watch(self, kind: str, handle: Any) -> None:
        """A handle of the wire, whose payload is a future."""
        began_s = self._log.now_s()
        payload: asyncio.Future[bytes] = handle.payload

        def end(done: asyncio.Future[bytes]) -> None:
            # One that was given up, as it came too late, has been worked on too.
            if done.cancelled() or done.exception() is None:
                self._log.took(self._tier, kind, began_s)

        payload.add_done_callback(end)

"""Tiers and leases of a sampled request: the plain ones' calls, each within a span that goes with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from actors.messages import AheadPlan, Context, Draft, DraftShape, Ids, ReplicaInfo, Verdict
from cluster.coordinator.tier import NO_TOKENS, DraftHandle, EnumerationHandle

if TYPE_CHECKING:
    from cluster.leases import RayLease, RemoteDraft, RemoteEnumeration
    from cluster.telemetry.tracing import CallSpan, RequestTrace
    from cluster.tiers import RayTier


class TracedTier:
    """One pool, leased for one request."""

    def __init__(self, tier: RayTier, name: str, trace: RequestTrace) -> None:
        self._tier = tier
        self._name = name
        self._trace = trace

    async def lease(
        self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS
    ) -> TracedLease:
        """As `RayTier.lease`."""
        span = self._trace.call("lease", {"outrider.tier": self._name})
        try:
            lease = await self._tier.lease(sequence_id, avoid, tokens, span.packed)
        except BaseException as error:
            span.end(error)
            raise
        span.set({"outrider.replica": lease.replica_id})
        span.end()
        return TracedLease(lease, self._name, self._trace)


class TracedLease:
    """A lease whose calls are drawn."""

    def __init__(self, lease: RayLease, tier: str, trace: RequestTrace) -> None:
        self._lease = lease
        self._trace = trace
        self._attributes = {"outrider.tier": tier, "outrider.replica": lease.replica_id}

    @property
    def replica_id(self) -> str:
        """As `RayLease.replica_id`."""
        return self._lease.replica_id

    @property
    def info(self) -> ReplicaInfo:
        """As `RayLease.info`."""
        return self._lease.info

    @property
    def revoked(self) -> bool:
        """As `RayLease.revoked`."""
        return self._lease.revoked

    def propose(self, context: Context, shape: DraftShape) -> RemoteDraft:
        """As `RayLease.propose`."""
        span = self._call("propose", context)
        handle = self._lease.propose(context, shape, span.packed)
        _end_with(span, handle.payload)
        return handle

    def enumerate(
        self, context: Context, draft: DraftHandle | Draft, verify_round: int, plan: AheadPlan
    ) -> RemoteEnumeration:
        """As `RayLease.enumerate`."""
        span = self._call("enumerate", context)
        handle = self._lease.enumerate(context, draft, verify_round, plan, span.packed)
        _end_with(span, handle.payload)
        return handle

    async def verify(self, context: Context, *drafts: DraftHandle | Draft, want_laws: bool) -> Verdict:
        """As `RayLease.verify`."""
        span = self._call("verify", context)
        return await _within(
            span, self._lease.verify(context, *drafts, want_laws=want_laws, trace=span.packed)
        )

    async def step(self, context: Context, shape: DraftShape) -> Verdict:
        """As `RayLease.step`."""
        span = self._call("step", context)
        return await _within(span, self._lease.step(context, shape, span.packed))

    async def verify_ahead(self, round: int, verify_round: int, enumeration: EnumerationHandle) -> Verdict:
        """As `RayLease.verify_ahead`."""
        span = self._trace.call("verify_ahead", self._attributes)
        return await _within(span, self._lease.verify_ahead(round, verify_round, enumeration, span.packed))

    async def release(self, held: Ids | None = None) -> None:
        """As `RayLease.release`."""
        await self._lease.release(held)

    def _call(self, name: str, context: Context) -> CallSpan:
        return self._trace.call(name, {**self._attributes, "outrider.num_sent_tokens": len(context.tokens)})


async def _within(span: CallSpan, call: Awaitable[Verdict]) -> Verdict:
    try:
        verdict = await call
    except BaseException as error:
        span.end(error)
        raise
    span.end()
    return verdict


def _end_with(span: CallSpan, payload: asyncio.Future[Any]) -> None:
    def end(done: asyncio.Future[Any]) -> None:
        span.end(asyncio.CancelledError() if done.cancelled() else done.exception())

    payload.add_done_callback(end)

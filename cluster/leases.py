"""The coordinator's tier protocols over Ray: leases from a Serve deployment, calls straight to actors.

Drafts are passed on as object references, so a payload goes from the drafting actor to the verifying
one; a reference that fails makes the dependent call fail too, hence each error is traced to its source.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from actors.messages import Context, Draft, ReplicaInfo, Verdict
from cluster.coordinator.tier import DraftHandle, DraftLost, NoReplica, ReplicaLost
from cluster.pools import LeaseGrant, Refused, Revoked

logger = logging.getLogger(__name__)

RETRY_S = 0.05  # between leases that were refused
MAX_AVOIDED = 3  # no handle can name a replica: ask again this often before taking an avoided one
CLOSE_TIMEOUT_S = 5.0


class RayDraft:
    """A draft under way in an actor."""

    def __init__(self, ref: Any) -> None:
        self.ref = ref
        self._task: asyncio.Future[Draft] | None = None

    def _outcome(self) -> asyncio.Future[Draft]:
        """One task for all who wait. Drafts are small: Ray brings them to the caller in any case."""
        if self._task is None:
            self._task = asyncio.ensure_future(_get(self.ref))
            self._task.add_done_callback(_mark_seen)
        return self._task

    async def wait(self, timeout_s: float) -> bool:
        """True when the draft is ready or has failed within `timeout_s`."""
        done, _ = await asyncio.wait({self._outcome()}, timeout=timeout_s)
        return bool(done)

    async def fetch(self) -> Draft:
        """The draft. Raises `ReplicaLost` when its producer died."""
        try:
            return await asyncio.shield(self._outcome())
        except RayError as error:
            raise ReplicaLost(f"the draft's producer failed: {_reason(error)}") from error

    async def failed(self) -> bool:
        """Whether the draft will never come, as far as is known now."""
        if not await self.wait(0.0) and not await self.wait(0.05):
            return False
        outcome = self._outcome()
        return outcome.cancelled() or outcome.exception() is not None


class RayLease:
    """A sequence's hold on one replica, kept by an open stream to its pool."""

    def __init__(self, sequence_id: str, grant: LeaseGrant, stream: Any) -> None:
        self._sequence_id = sequence_id
        self._grant = grant
        self._stream = stream
        self._revoked = False
        self._released = False
        self._watch = asyncio.create_task(self._follow())

    @property
    def replica_id(self) -> str:
        """Identity of the replica and of this generation of its actors."""
        return self._grant.replica_id

    @property
    def info(self) -> ReplicaInfo:
        """What the replica serves."""
        return self._grant.info

    @property
    def revoked(self) -> bool:
        """True once the replica is going away, or no longer counts this lease."""
        return self._revoked

    async def _follow(self) -> None:
        try:
            async for item in self._stream:
                if isinstance(item, Revoked):
                    self._revoked = True
                    logger.info("lease revoked: %s", item.reason, extra={
                        "request_id": self._sequence_id, "replica_id": self.replica_id})
        except (RayError, RayServeException) as error:
            if not self._released:
                logger.info("lease lost: %s", _reason(error), extra={
                    "request_id": self._sequence_id, "replica_id": self.replica_id})
        self._revoked = True

    def propose(self, context: Context, num_tokens: int) -> DraftHandle:
        """Start drafting; returns at once."""
        return RayDraft(self._grant.actor.propose.remote(context, num_tokens))

    def verify(self, context: Context, *drafts: DraftHandle | Draft, want_laws: bool) -> Awaitable[Verdict]:
        """Verify `drafts` after `context`. Raises `ReplicaLost`, or `DraftLost` when a draft never came.

        Cancelling abandons the call: the actor ends its pass, and the answer is dropped.
        """
        under_way = [draft for draft in drafts if isinstance(draft, RayDraft)]
        arguments = [draft.ref if isinstance(draft, RayDraft) else draft for draft in drafts]
        ref = self._grant.actor.verify.remote(context, *arguments, want_laws=want_laws)
        return self._verdict(ref, under_way)

    async def _verdict(self, ref: Any, under_way: list[RayDraft]) -> Verdict:
        try:
            verdict: Verdict = await ref
            return verdict
        except RayError as error:
            for draft in under_way:
                if await draft.failed():
                    raise DraftLost(_reason(error)) from error
            raise ReplicaLost(f"{self.replica_id}: {_reason(error)}") from error

    async def release(self) -> None:
        """Free the sequence and give the replica back. Idempotent; never raises for a dead replica."""
        if self._released:
            return
        self._released = True
        if self._watch.done():
            # The pool ended the lease, so nothing is held there. Actors know sequences by name: a close now
            # would end the lease that follows this one on the same replica.
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._grant.actor.close.remote(self._sequence_id)
                await asyncio.shield(self._watch)  # the pool ends the stream by itself
        except (RayError, TimeoutError) as error:
            logger.info("lease given back without an answer: %s", _reason(error), extra={
                "request_id": self._sequence_id, "replica_id": self.replica_id})
        finally:
            if not self._watch.done():
                self._stream.cancel()


class RayTier:
    """One pool, reached by its deployment handle."""

    def __init__(self, handle: DeploymentHandle[Any], timeout_s: float = 60.0) -> None:
        self._handle = handle.options(stream=True)
        self._timeout_s = timeout_s

    async def lease(self, sequence_id: str, avoid: frozenset[str] = frozenset()) -> RayLease:
        """Hold a replica. Raises `NoReplica` when none is to be had within `timeout_s`."""
        end = time.monotonic() + self._timeout_s
        reason, num_avoided = "none answered", 0
        while (left_s := end - time.monotonic()) > 0:
            stream: Any = self._handle.lease.remote(sequence_id)
            kept = False
            try:
                async with asyncio.timeout(left_s):
                    first = await anext(stream)
                if isinstance(first, LeaseGrant) and (
                    first.replica_id not in avoid or num_avoided >= MAX_AVOIDED
                ):
                    kept = True
                    return RayLease(sequence_id, first, stream)
                num_avoided += isinstance(first, LeaseGrant)
                reason = first.reason if isinstance(first, Refused) else "only replicas to be avoided"
            except TimeoutError:
                reason = f"{reason}, none became free"
            except StopAsyncIteration:
                reason = "the replica ended the lease"
            except (RayError, RayServeException) as error:
                reason = _reason(error)
            finally:
                if not kept:
                    stream.cancel()
            await asyncio.sleep(min(RETRY_S, max(0.0, end - time.monotonic())))
        raise NoReplica(f"no replica within {self._timeout_s:.1f} s: {reason}")


async def _get(ref: Any) -> Draft:
    draft: Draft = await ref
    return draft


def _mark_seen(outcome: asyncio.Future[Draft]) -> None:
    """A draft that nobody fetches may fail without a warning."""
    if not outcome.cancelled():
        outcome.exception()


def _reason(error: BaseException) -> str:
    """One short line; a Ray error's own text spans a screen and may quote arguments."""
    if isinstance(error, RayTaskError):
        return f"the call failed ({type(error.cause).__name__})"
    if isinstance(error, ActorDiedError):
        return "its actor died"
    if isinstance(error, ActorUnavailableError):
        return "its actor cannot be reached"
    return type(error).__name__

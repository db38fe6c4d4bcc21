"""A sequence's hold on one replica, and what is under way there: calls go straight to the replica's actors.

A draft is passed on to the verifying actor as the bytes that the drafting actor sent: nothing here reads it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from actors.messages import AheadPlan, Context, Draft, DraftShape, Enumeration, Ids, ReplicaInfo, Verdict
from actors.wire.checked import Unreadable
from actors.wire.codec import (
    decode_draft,
    decode_enumeration,
    decode_verdict,
    encode,
    encode_ahead,
    encode_close,
    encode_propose,
    encode_step,
    encode_verify,
    encode_verify_ahead,
)
from actors.wire.frames import Kind
from cluster.channel import CallFailed, CallRefused, Channel, ChannelLost, OutOfReach, Reply
from cluster.coordinator.tier import DraftHandle, DraftLost, EnumerationHandle, NoRoom, ReplicaLost
from cluster.pools import LeaseGrant, Revoked
from cluster.running import Running, Stay

logger = logging.getLogger(__name__)

Learn = Callable[[Ids], None]  # the tokens that a replica may keep

CLOSE_TIMEOUT_S = 5.0


class RemoteDraft:
    """A draft under way in an actor. Its payload is passed on as it came; only `fetch` reads it."""

    def __init__(self, payload: Reply) -> None:
        self.payload = payload

    async def wait(self, timeout_s: float) -> bool:
        """True when the draft is ready or has failed within `timeout_s`."""
        if not self.payload.done():
            await asyncio.wait({self.payload}, timeout=timeout_s)
        return self.payload.done()

    async def fetch(self) -> Draft:
        """The draft. Raises `ReplicaLost` when its producer died."""
        try:
            return decode_draft(await asyncio.shield(self.payload))
        except (ChannelLost, CallFailed, Unreadable) as error:
            raise ReplicaLost(f"the draft's producer failed: {error}") from error


class RemoteEnumeration:
    """An enumeration under way in an actor; passed on as it came."""

    def __init__(self, payload: asyncio.Future[bytes]) -> None:
        self.payload = payload

    async def fetch(self) -> Enumeration:
        """The enumeration. Raises `ReplicaLost` when its producer died."""
        try:
            return decode_enumeration(await self.payload)
        except (ChannelLost, CallFailed, Unreadable) as error:
            raise ReplicaLost(f"the enumeration's producer failed: {error}") from error


@dataclass(frozen=True, slots=True)
class _Announced:
    """A verify call that the replica was told of before its draft was there."""

    context: Context
    draft: RemoteDraft
    want_laws: bool
    answer: asyncio.Future[bytes]

    def is_of(self, context: Context, drafts: tuple[DraftHandle | Draft, ...], want_laws: bool) -> bool:
        """Whether this is the call with these arguments."""
        return self.context is context and drafts == (self.draft,) and self.want_laws == want_laws


class RayLease:
    """A sequence's hold on one replica, kept by an open stream to its pool. Its calls go over a channel.

    `trace` of a call: the span that it is part of (`actors.spans.pack`), if its request is traced.
    """

    def __init__(
        self, sequence_id: str, grant: LeaseGrant, stream: Any, channel: Channel, learn: Learn = lambda held: None,
        out_of_reach: Callable[[], None] = lambda: None, running: Running | None = None,
        stay: Stay | None = None,
    ) -> None:
        """`learn` is told what the replica keeps, `out_of_reach` that its actor says nothing; `running` tells who is
        going away; `stay`: how long a sequence that may move to newcomers stays."""
        self._sequence_id = sequence_id
        self._grant = grant
        self._stream = stream
        self._channel = channel
        self._learn = learn
        self._out_of_reach = out_of_reach
        self._running = running or Running()
        self._stay = stay
        self._revoked = False
        self._released = False
        self._under_way: set[asyncio.Future[bytes]] = set()
        self._announced: _Announced | None = None
        channel.num_sequences += 1
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
        """True once the replica is going away, no longer counts this lease, or should share its load with newcomers."""
        return (
            self._revoked or self._running.left(tag_of(self.replica_id)) or (self._stay is not None and self._stay.over)
        )

    async def _follow(self) -> None:
        try:
            async for item in self._stream:
                if isinstance(item, Revoked):
                    self._revoked = True
                    logger.info("lease revoked: %s", item.reason, extra={
                        "request_id": self._sequence_id, "replica_id": self.replica_id})
        except (RayError, RayServeException) as error:
            if not self._released:
                logger.info("lease lost: %s", reason_of(error), extra={
                    "request_id": self._sequence_id, "replica_id": self.replica_id})
        self._revoked = True
        for call in list(self._under_way):  # Ray knows of a machine's end before the connection does
            if not call.done():
                call.set_exception(ChannelLost("its lease ended"))

    def propose(self, context: Context, shape: DraftShape, trace: bytes = b"") -> RemoteDraft:
        """Start drafting; returns at once."""
        payload = self._call(Kind.PROPOSE, encode_propose(context, shape), trace)
        return RemoteDraft(payload)

    def announce(self, context: Context, draft: DraftHandle, *, want_laws: bool) -> None:
        """Tell the replica of the verify call that comes next, with `draft`, which is under way.

        The draft goes on to the replica as soon as it is there, so a round waits for nothing between the two. Any
        other call of `verify` takes the announcement back.
        """
        self._withdraw()
        assert isinstance(draft, RemoteDraft)
        if not draft.payload.done():
            sent = encode_verify(context, None, want_laws)
            answer = self._followed(self._channel.announce(Kind.VERIFY, sent, draft.payload))
            self._announced = _Announced(context, draft, want_laws, answer)

    def _withdraw(self) -> None:
        announced, self._announced = self._announced, None
        if announced is not None:
            announced.answer.cancel()

    async def verify(
        self, context: Context, *drafts: DraftHandle | Draft, want_laws: bool, trace: bytes = b""
    ) -> Verdict:
        """Verify `drafts` after `context`. Raises `ReplicaLost`, or `DraftLost` when a draft never came.

        Cancelling abandons the call: the actor ends its pass, and the answer is dropped.
        """
        if self._announced is not None:
            announced = self._announced
            if announced.is_of(context, drafts, want_laws):
                self._announced = None
                return await self._announced_verdict(announced)
            self._withdraw()
        payloads: list[bytes] = []
        for draft in drafts:
            if isinstance(draft, Draft):
                payloads.append(encode(draft))
                continue
            assert isinstance(draft, RemoteDraft)
            payloads.append(await _came(draft))
        return await self._verdict(Kind.VERIFY, encode_verify(context, payloads, want_laws), trace)

    async def _announced_verdict(self, announced: _Announced) -> Verdict:
        try:
            await _came(announced.draft)
        except BaseException:  # it failed, or nobody waits for the verdict any more
            announced.answer.cancel()
            raise
        return await self._read(announced.answer)

    async def step(self, context: Context, shape: DraftShape, trace: bytes = b"") -> Verdict:
        """Draft and verify in one call. Raises `ReplicaLost`."""
        return await self._verdict(Kind.STEP, encode_step(context, shape), trace)

    def enumerate(
        self, context: Context, draft: DraftHandle | Draft, verify_round: int, plan: AheadPlan, trace: bytes = b""
    ) -> RemoteEnumeration:
        """Start drafting for the outcomes of a pass under way; returns at once."""
        if isinstance(draft, Draft):
            sent = encode(draft)
        else:
            assert isinstance(draft, RemoteDraft)
            sent = draft.payload.result()
        payload = self._call(Kind.AHEAD, encode_ahead(context, sent, verify_round, plan), trace)
        return RemoteEnumeration(payload)

    async def verify_ahead(
        self, round: int, verify_round: int, enumeration: EnumerationHandle, trace: bytes = b""
    ) -> Verdict:
        """Verify the branch that fits the outcome of the pass of `verify_round`. Raises `ReplicaLost`."""
        assert isinstance(enumeration, RemoteEnumeration)
        sent = encode_verify_ahead(self._sequence_id, round, enumeration.payload.result())
        return await self._verdict(Kind.VERIFY_AHEAD, sent, trace)

    async def _verdict(self, kind: Kind, payload: bytes, trace: bytes) -> Verdict:
        return await self._read(self._call(kind, payload, trace))

    async def _read(self, under_way: asyncio.Future[bytes]) -> Verdict:
        try:
            answer = await under_way
        except ChannelLost as error:
            if isinstance(error, OutOfReach):
                self._out_of_reach()
            raise ReplicaLost(f"{self.replica_id}: {error}") from error
        except CallRefused as error:
            raise NoRoom(f"{self.replica_id}: {error}") from error
        except CallFailed as error:
            raise ReplicaLost(f"{self.replica_id}: the call failed ({error})") from error
        try:
            return decode_verdict(answer)
        except Unreadable as error:
            raise ReplicaLost(f"{self.replica_id}: its answer cannot be read ({error})") from error

    def _call(self, kind: Kind, payload: bytes, trace: bytes) -> Reply:
        return self._followed(self._channel.call(kind, payload, trace))

    def _followed(self, answer: Reply) -> Reply:
        """The answer to a call, which ends with the lease. Nobody need wait for it: it may fail without a warning."""
        self._under_way.add(answer)
        answer.add_done_callback(self._ended)
        return answer

    def _ended(self, answer: asyncio.Future[bytes]) -> None:
        self._under_way.discard(answer)
        if not answer.cancelled():
            answer.exception()

    async def release(self, held: Ids | None = None) -> None:
        """Free the sequence and give the replica back. Idempotent; never raises for a dead replica."""
        if self._released:
            return
        self._released = True
        self._channel.num_sequences -= 1
        self._withdraw()
        if held is not None:
            self._learn(held)
        if self._watch.done():
            # The pool ended the lease, so nothing is held there. Actors know sequences by name: a close now
            # would end the lease that follows this one on the same replica.
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._channel.call(Kind.CLOSE, encode_close(self._sequence_id, held))
                await asyncio.shield(self._watch)  # the pool ends the stream by itself
        except (ChannelLost, CallFailed, TimeoutError) as error:
            logger.info("lease given back without an answer: %s", error or type(error).__name__, extra={
                "request_id": self._sequence_id, "replica_id": self.replica_id})
        finally:
            if not self._watch.done():
                self._stream.cancel()


def tag_of(replica_id: str) -> str:
    """The Serve replica of a `LeaseGrant.replica_id`, whichever generation of its actors."""
    return replica_id.rpartition("#")[0]


async def _came(draft: RemoteDraft) -> bytes:
    """The payload of a draft once it is there. Raises `DraftLost`."""
    payload = draft.payload
    try:
        return payload.result() if payload.done() else await asyncio.shield(payload)
    except (ChannelLost, CallFailed) as error:
        raise DraftLost(str(error)) from error


def reason_of(error: BaseException) -> str:
    """One short line; a Ray error's own text spans a screen and may quote arguments."""
    if isinstance(error, RayTaskError):
        return f"the call failed ({type(error.cause).__name__})"
    if isinstance(error, ActorDiedError):
        return "its actor died"
    if isinstance(error, ActorUnavailableError):
        return "its actor cannot be reached"
    return type(error).__name__

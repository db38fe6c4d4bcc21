"""The coordinator's tier protocols over a cluster: leases from a Serve deployment, calls straight to its actors.

A draft is passed on to the verifying actor as the bytes that the drafting actor sent: nothing here reads it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

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
from cluster.channel import SILENCE_S, CallFailed, CallRefused, Channel, ChannelLost, Channels, OutOfReach
from cluster.coordinator.tier import (
    NO_TOKENS,
    DraftHandle,
    DraftLost,
    EnumerationHandle,
    NoReplica,
    NoRoom,
    PoolFull,
    ReplicaLost,
)
from cluster.pools import LeaseGrant, Refused, Revoked
from cluster.prefixes import LocalPrefixes, Prefixes, digests
from cluster.routing import Preference
from cluster.running import Running, Stay

logger = logging.getLogger(__name__)

Learn = Callable[[Ids], None]  # the tokens that a replica may keep

RETRY_S = 0.05  # after all replicas refused; doubles
MAX_RETRY_S = 0.5
MAX_AVOIDED = 3  # ask again this often before taking an avoided replica: perhaps another one comes up
CLOSE_TIMEOUT_S = 5.0
SHUN_S = 30.0  # a replica that could not be reached is asked last for this long, by whichever sequence


class RemoteDraft:
    """A draft under way in an actor. Its payload is passed on as it came; only `fetch` reads it."""

    def __init__(self, payload: asyncio.Future[bytes]) -> None:
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
            self._revoked or self._running.left(_tag(self.replica_id)) or (self._stay is not None and self._stay.over)
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
                logger.info("lease lost: %s", _reason(error), extra={
                    "request_id": self._sequence_id, "replica_id": self.replica_id})
        self._revoked = True
        for call in list(self._under_way):  # Ray knows of a machine's end before the connection does
            if not call.done():
                call.set_exception(ChannelLost("its lease ended"))

    def propose(self, context: Context, shape: DraftShape, trace: bytes = b"") -> RemoteDraft:
        """Start drafting; returns at once."""
        payload = self._call(Kind.PROPOSE, encode_propose(context, shape), trace)
        payload.add_done_callback(_mark_seen)  # a draft that nobody waits for may fail without a warning
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
            answer.add_done_callback(_mark_seen)
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
        payload.add_done_callback(_mark_seen)
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

    def _call(self, kind: Kind, payload: bytes, trace: bytes) -> asyncio.Future[bytes]:
        return self._followed(self._channel.call(kind, payload, trace))

    def _followed(self, answer: asyncio.Future[bytes]) -> asyncio.Future[bytes]:
        """The answer to a call, which ends with the lease."""
        self._under_way.add(answer)
        answer.add_done_callback(self._under_way.discard)
        return answer

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


class RayTier:
    """One pool, reached by its deployment handle."""

    def __init__(
        self, handle: DeploymentHandle[Any], timeout_s: float = 60.0, *, full_timeout_s: float = 10.0,
        prefixes: Prefixes | None = None, silence_s: float = SILENCE_S, running: Running | None = None,
        may_sleep: bool = False, spreads: bool = False,
    ) -> None:
        """The pool behind `handle`.

        Args:
            handle: of the deployment.
            timeout_s: bounds a lease, a replica's rebuild included.
            full_timeout_s: bounds the wait for a place.
            prefixes: who has met which prefix.
            silence_s: see `cluster.channel.Channel`.
            running: what Serve tells of the pool's replicas.
            may_sleep: its autoscaler may leave it none.
            spreads: sequences move to replicas that come, at the cost of computing there what they have so far.
        """
        self._handle = handle.options(stream=True)
        self._timeout_s = timeout_s
        self._full_timeout_s = full_timeout_s
        self._prefixes = prefixes or LocalPrefixes()
        self._channels = Channels(silence_s)
        self._shunned: dict[str, float] = {}  # tags of replicas that could not be reached -> until when
        self._running = running or Running()
        self._may_sleep = may_sleep
        self._spreads = spreads
        self._num_waiting = 0

    @property
    def asleep(self) -> bool:
        """Whether its autoscaler has left it no replica."""
        return self._may_sleep and self._running.none

    @property
    def num_waiting(self) -> int:
        """Sequences that look for a place just now."""
        return self._num_waiting

    async def lease(
        self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS, trace: bytes = b""
    ) -> RayLease:
        """Hold a replica, best one that met the beginning of `tokens`.

        Raises `NoReplica` when none is to be had within `timeout_s`, `PoolFull` when all were full all the time of
        `full_timeout_s`.
        """
        self._num_waiting += 1
        try:
            return await self._lease(sequence_id, avoid, tokens, trace)
        finally:
            self._num_waiting -= 1

    async def _lease(self, sequence_id: str, avoid: frozenset[str], tokens: Ids, trace: bytes) -> RayLease:
        search = _Search(self._timeout_s, self._full_timeout_s)
        names = digests(tokens)
        shares = await self._prefixes.shares(names)
        while (left_s := search.left_s()) > 0:
            last = self._out_of_reach() | {_tag(replica) for replica in avoid}
            preference = Preference(shares, search.refused | last)
            stream: Any = self._handle.lease.remote(sequence_id, preference, trace)
            kept = False
            try:
                async with asyncio.timeout(left_s):
                    first = await anext(stream)
                    if isinstance(first, Refused):
                        search.note(first)
                    elif first.replica_id in avoid and search.num_avoided < MAX_AVOIDED:
                        search.note_avoided()
                    else:
                        channel = await self._channels.open(first.endpoint)
                        kept = True
                        tag = _tag(first.replica_id)
                        self._prefixes.learn(names, tag)
                        return RayLease(
                            sequence_id, first, stream, channel, partial(self._learn, tag), partial(self._shun, tag),
                            self._running, Stay(self._running, sequence_id) if self._spreads else None,
                        )
            except TimeoutError:
                search.reason = f"{search.reason}, none became free"
            except StopAsyncIteration:
                search.reason = "the replica ended the lease"
            except (RayError, RayServeException) as error:
                search.reason = _reason(error)
            except ChannelLost as error:
                search.reason = str(error)
                self._shun(_tag(first.replica_id))
                logger.warning("%s cannot be called: %s", first.replica_id, error)
            finally:
                if not kept:
                    stream.cancel()
            await search.pause()
        raise NoReplica(f"no replica within {self._timeout_s:.1f} s: {search.reason}")

    def _shun(self, tag: str) -> None:
        """This replica was out of reach just now: whoever asks next had better ask others first."""
        self._shunned[tag] = time.monotonic() + SHUN_S

    def _out_of_reach(self) -> frozenset[str]:
        now = time.monotonic()
        self._shunned = {tag: until for tag, until in self._shunned.items() if until > now}
        return frozenset(self._shunned)

    def _learn(self, tag: str, held: Ids) -> None:
        self._prefixes.learn(digests(held), tag)


class _Search:
    """One search for a lease: who refused, why, and how long to go on."""

    def __init__(self, timeout_s: float, full_timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s
        self._full_timeout_s = full_timeout_s
        self._full_since: float | None = None  # every answer since then was that a replica is full
        self._pause_s = RETRY_S
        self._round_ended = False
        self.refused: frozenset[str] = frozenset()  # tags: asked in this round of questions
        self.num_avoided = 0
        self.reason = "none answered"

    def left_s(self) -> float:
        """Time to the end. Raises `PoolFull` when nothing but full replicas was met for too long."""
        now = time.monotonic()
        if self._full_since is not None and now - self._full_since >= self._full_timeout_s:
            raise PoolFull(self.reason)
        return self._end - now

    def note(self, refusal: Refused) -> None:
        """Ask others first; when one that has refused is met again there is no other."""
        self.reason = refusal.reason
        self._round_ended = refusal.tag in self.refused
        self.refused |= {refusal.tag}
        if not refusal.full:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = time.monotonic()

    def note_avoided(self) -> None:
        """Serve knew no other replica than one to be avoided."""
        self.num_avoided += 1
        self.reason = "only replicas to be avoided"
        self._round_ended = True

    async def pause(self) -> None:
        """Before the next question: none while there are others to ask, then longer each time."""
        if self._round_ended or not self.refused:
            await asyncio.sleep(min(self._pause_s * random.uniform(0.5, 1.0), max(0.0, self._end - time.monotonic())))
            self._pause_s = min(2 * self._pause_s, MAX_RETRY_S)
            self.refused = frozenset()
            self._round_ended = False


def _tag(replica_id: str) -> str:
    """The Serve replica of a `LeaseGrant.replica_id`, whichever generation of its actors."""
    return replica_id.rpartition("#")[0]


async def _came(draft: RemoteDraft) -> bytes:
    """The payload of a draft once it is there. Raises `DraftLost`."""
    payload = draft.payload
    try:
        return payload.result() if payload.done() else await asyncio.shield(payload)
    except (ChannelLost, CallFailed) as error:
        raise DraftLost(str(error)) from error


def _mark_seen(outcome: asyncio.Future[bytes]) -> None:
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

"""A lease holds one replica, tells what that has met, and makes its calls once and as they were meant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actors.engine.jobs import ReplicaFull
from actors.messages import Context, Draft, Origin, Verdict
from actors.presence import Presence
from actors.sampling.params import SamplingParams
from actors.wire.access import Endpoint
from actors.wire.codec import decode_verify, encode, readable
from actors.wire.frames import Kind
from actors.wire.server import Announced, Call, CallServer, completed
from cluster.channel import ChannelLost, Reply
from cluster.coordinator.tier import NO_TOKENS, DraftLost, NoRoom
from cluster.leases import RayLease, RemoteDraft
from cluster.pools import LeaseGrant
from cluster.prefixes import BLOCK_TOKENS, LocalPrefixes, digests
from cluster.running import Running
from cluster.tiers import RayTier
from tests.unit.lease_doubles import INFO, Handle, serving


def no_room(payload: bytes) -> Call:
    """The answer of a replica that is full."""
    answer: Future[Any] = Future()
    answer.set_exception(ReplicaFull("9 calls wait already"))
    return Call("s", answer)


def test_a_replica_without_room_for_a_call_is_full_not_lost() -> None:
    async def body(endpoint: Endpoint) -> None:
        handle: Any = Handle(lambda preference: LeaseGrant("a#1", endpoint, INFO))
        lease = await RayTier(handle, 60.0).lease("s")
        context = Context("s", 0, np.arange(3, dtype=np.int32), 3, 3, SamplingParams(), 1)
        with pytest.raises(NoRoom, match="a#1: 9 calls wait already"):
            await lease.verify(context, want_laws=False)

    serving(body, verify=no_room)


def test_a_lease_tells_what_its_replica_met_when_it_begins_and_ends() -> None:
    async def body(endpoint: Endpoint) -> None:
        prefixes = LocalPrefixes()
        handle: Any = Handle(lambda preference: LeaseGrant("a#1", endpoint, INFO))
        tier = RayTier(handle, 60.0, prefixes=prefixes)
        text = np.arange(4 * BLOCK_TOKENS, dtype=np.int32)
        lease: RayLease = await tier.lease("s", tokens=text[: 2 * BLOCK_TOKENS])
        assert await prefixes.shares(digests(text)) == {"a": 0.5}
        lease._stream.cancel()  # the pool ends it, now or when the sequence is closed
        await lease.release(text)
        assert await prefixes.shares(digests(text)) == {"a": 1.0}
        await tier.lease("t", tokens=text)
        assert handle.preferences[0].shares == {}
        assert handle.preferences[1].shares == {"a": 1.0}

    serving(body)


def test_a_lease_gives_way_to_replicas_that_come_in_pools_that_spread() -> None:
    async def body(endpoint: Endpoint) -> None:
        pool = Running(frozenset({"a"}))
        handle = Handle(lambda preference: LeaseGrant("a#1", endpoint, INFO))
        drafts, target = RayTier(handle, 60.0, running=pool, spreads=True), RayTier(handle, 60.0, running=pool)
        leases = [await tier.lease("s") for tier in (drafts, target)]
        assert [lease.revoked for lease in leases] == [False, False]
        pool.told(frozenset({"a", *map(str, range(10**4))}))
        assert [lease.revoked for lease in leases] == [True, False]
        later = await drafts.lease("s")
        assert not later.revoked, "it came after the newcomers"
        await asyncio.gather(*(lease.release() for lease in (*leases, later)))

    serving(body)


CONTEXT = Context("s", 0, np.arange(3, dtype=np.int32), 3, 3, SamplingParams(), 1)
DRAFT = Draft(np.array([4, 5], np.int32))


class Verifies:
    """An actor that accepts every draft and adds a 9; the drafts that its calls came with, and the announced ones."""

    def __init__(self) -> None:
        self.verified: list[list[int]] = []
        self.num_announced = 0
        self.callers: set[Any] = set()
        presence = Presence(60)
        begin = presence.begin
        presence.begin = lambda name, caller: (self.callers.add(caller), begin(name, caller))[1]  # type: ignore
        handlers: Any = {Kind.VERIFY: self._verify, Kind.CLOSE: lambda _: Call("s", completed(None))}
        self.server = CallServer(handlers, presence)

    def _verify(self, payload: bytes) -> Call | Announced:
        _, drafts, _ = decode_verify(payload)
        if drafts is None:
            self.num_announced += 1
            return Announced(lambda draft: self._begin(readable([draft])))
        return self._begin(drafts)

    def _begin(self, drafts: list[Draft]) -> Call:
        tokens = np.concatenate([NO_TOKENS, *(draft.tokens for draft in drafts)])
        self.verified.append(tokens.tolist())
        verdict = Verdict(np.append(tokens, np.int32(9)), len(tokens), len(tokens), Origin.BONUS)
        return Call("s", completed(verdict))

    @property
    def num_waiting(self) -> int:
        """Announced calls that still wait for their drafts."""
        return sum(len(caller._announced) for caller in self.callers)


def announcing(body: Callable[[Verifies, RayLease, Reply], Any]) -> Verifies:
    """Runs `body` with a lease of an actor, and the payload of a draft under way; afterwards nothing is waited for."""
    verifies = Verifies()

    async def main() -> None:
        endpoint = await verifies.server.listen("127.0.0.1")
        handle: Any = Handle(lambda preference: LeaseGrant("a#1", endpoint, INFO))
        lease = await RayTier(handle, 60.0).lease("s")
        async with asyncio.timeout(60):
            await body(verifies, lease, Reply(asyncio.get_running_loop()))
            lease._stream.cancel()
            await lease.release()
            while verifies.num_waiting:
                await asyncio.sleep(0.001)
        verifies.server.close()

    asyncio.run(main())
    return verifies


def test_an_announced_call_is_made_once_and_as_it_was_announced() -> None:
    async def body(verifies: Verifies, lease: RayLease, payload: Reply) -> None:
        draft = RemoteDraft(payload)
        lease.announce(CONTEXT, draft, want_laws=False)
        payload.set_result(encode(DRAFT))
        verdict = await lease.verify(CONTEXT, draft, want_laws=False)
        assert verdict.tokens.tolist() == [4, 5, 9]

    verifies = announcing(body)
    assert (verifies.verified, verifies.num_announced) == ([[4, 5]], 1)


def test_another_call_takes_an_announcement_back() -> None:
    async def body(verifies: Verifies, lease: RayLease, payload: Reply) -> None:
        lease.announce(CONTEXT, RemoteDraft(payload), want_laws=False)
        while not verifies.num_announced:
            await asyncio.sleep(0.001)
        other = replace(CONTEXT, round=2)
        assert (await lease.verify(other, want_laws=False)).tokens.tolist() == [9]  # it goes on without the draft
        payload.set_result(encode(DRAFT))  # which comes too late
        assert (await lease.verify(other, DRAFT, want_laws=False)).tokens.tolist() == [4, 5, 9]

    verifies = announcing(body)
    assert (verifies.verified, verifies.num_announced) == ([[], [4, 5]], 1)


def test_an_announced_call_whose_draft_is_lost_says_so_and_may_be_repeated_without_it() -> None:
    async def body(verifies: Verifies, lease: RayLease, payload: Reply) -> None:
        draft = RemoteDraft(payload)
        lease.announce(CONTEXT, draft, want_laws=False)
        payload.set_exception(ChannelLost("the drafter died"))
        with pytest.raises(DraftLost, match="the drafter died"):
            await lease.verify(CONTEXT, draft, want_laws=False)
        assert (await lease.verify(CONTEXT, want_laws=False)).tokens.tolist() == [9]

    assert announcing(body).verified == [[]]


def test_a_call_that_is_abandoned_before_its_draft_came_is_not_made() -> None:
    async def body(verifies: Verifies, lease: RayLease, payload: Reply) -> None:
        draft = RemoteDraft(payload)
        lease.announce(CONTEXT, draft, want_laws=False)
        verifying = asyncio.create_task(lease.verify(CONTEXT, draft, want_laws=False))
        await asyncio.sleep(0)
        verifying.cancel()
        await asyncio.wait({verifying})
        payload.set_result(encode(DRAFT))  # nobody waits for it any more

    assert announcing(body).verified == []


def test_an_announced_call_is_taken_back_when_the_pool_ends_its_lease() -> None:
    async def body(verifies: Verifies, lease: RayLease, payload: Reply) -> None:
        await lease.verify(CONTEXT, want_laws=False)
        lease.announce(replace(CONTEXT, round=2), RemoteDraft(payload), want_laws=False)
        while not verifies.num_waiting:
            await asyncio.sleep(0.001)
        lease._stream.cancel()
        while not lease.revoked:
            await asyncio.sleep(0.001)

    assert announcing(body).verified == [[]]


def test_an_announcement_ends_with_its_lease() -> None:
    async def body(verifies: Verifies, lease: RayLease, payload: Reply) -> None:
        lease.announce(CONTEXT, RemoteDraft(payload), want_laws=False)
        while not verifies.num_announced:
            await asyncio.sleep(0.001)

    assert announcing(body).verified == []


def test_a_draft_that_is_there_needs_no_announcement() -> None:
    async def body(verifies: Verifies, lease: RayLease, payload: Reply) -> None:
        draft = RemoteDraft(payload)
        payload.set_result(encode(DRAFT))
        lease.announce(CONTEXT, draft, want_laws=False)
        await lease.verify(CONTEXT, draft, want_laws=False)

    verifies = announcing(body)
    assert (verifies.verified, verifies.num_announced) == ([[4, 5]], 0)

"""A search for a lease asks others before it waits, waits no longer than it may, and says why it failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from actors.engine.jobs import ReplicaFull
from actors.messages import Context, ReplicaInfo
from actors.presence import Presence
from actors.sampling.params import SamplingParams
from actors.wire.access import Endpoint, new_secret
from actors.wire.frames import Kind
from actors.wire.server import Call, CallServer, completed
from cluster.coordinator.tier import NoReplica, NoRoom, PoolFull
from cluster.leases import RayLease, RayTier
from cluster.pools import LeaseGrant, Refused
from cluster.prefixes import BLOCK_TOKENS, LocalPrefixes, digests
from cluster.routing import Preference
from cluster.running import Running

INFO = ReplicaInfo(0, "m", 10, 10, 1, 1, "")
Answer = LeaseGrant | Refused


class Handle:
    """A pool's deployment handle: each lease is answered by a script that sees what was preferred."""

    def __init__(self, answer: Callable[[Preference], Answer]) -> None:
        self.preferences: list[Preference] = []
        self._answer = answer
        self.lease = self

    def options(self, stream: bool) -> Handle:
        return self

    def remote(self, sequence_id: str, preference: Preference, trace: bytes = b"") -> Any:
        self.preferences.append(preference)
        return Stream(self._answer(preference))


class Stream:
    """A lease's stream: its first item, then nothing until it is cancelled."""

    def __init__(self, first: Answer) -> None:
        self._items = self._stream(first)
        self.cancelled = asyncio.Event()

    async def _stream(self, first: Answer) -> AsyncGenerator[Answer, None]:
        yield first
        if isinstance(first, LeaseGrant):
            await self.cancelled.wait()

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Answer:
        return await anext(self._items)

    def cancel(self) -> None:
        self.cancelled.set()


def run(body: Callable[[Endpoint], Any]) -> None:
    async def main() -> None:
        def close(payload: bytes) -> Call:
            return Call("s", completed(None))

        def verify(payload: bytes) -> Call:
            no_room: Future[Any] = Future()
            no_room.set_exception(ReplicaFull("9 calls wait already"))
            return Call("s", no_room)

        server = CallServer({Kind.CLOSE: close, Kind.VERIFY: verify}, Presence(60))
        try:
            async with asyncio.timeout(60):
                await body(await server.listen("127.0.0.1"))
        finally:
            server.close()

    asyncio.run(main())


def full(tag: str) -> Refused:
    return Refused(f"{tag} is full", tag, full=True)


def test_others_are_asked_at_once_when_one_refuses() -> None:
    async def body(endpoint: Endpoint) -> None:
        def answer(preference: Preference) -> Answer:
            for tag in "abcdefghij":
                if tag not in preference.avoid:
                    return full(tag) if tag < "j" else LeaseGrant("j#1", endpoint, INFO)
            raise AssertionError("all were refused")

        handle: Any = Handle(answer)
        lease = await RayTier(handle, 60.0).lease("s", frozenset({"b#7"}))
        assert lease.replica_id == "j#1"
        assert handle.preferences[0].avoid == {"b"}
        assert handle.preferences[-1].avoid == set("abcdefghi")  # a pause would have forgotten who refused

    run(body)


def test_a_full_pool_is_given_up_in_time_and_says_so() -> None:
    async def body(endpoint: Endpoint) -> None:
        handle: Any = Handle(lambda preference: full("a"))
        with pytest.raises(PoolFull, match="a is full"):
            await RayTier(handle, 3600.0, full_timeout_s=0.2).lease("s")
        assert len(handle.preferences) < 20  # with pauses that grow

    run(body)


def test_a_place_that_becomes_free_is_taken() -> None:
    async def body(endpoint: Endpoint) -> None:
        answers = iter([full("a"), full("a"), full("a")])
        handle: Any = Handle(lambda preference: next(answers, LeaseGrant("a#1", endpoint, INFO)))
        assert (await RayTier(handle, 60.0).lease("s")).replica_id == "a#1"

    run(body)


def test_a_pool_that_is_being_rebuilt_is_not_full() -> None:
    async def body(endpoint: Endpoint) -> None:
        def answer(preference: Preference) -> Answer:
            return Refused("b is being rebuilt", "b") if "a" in preference.avoid else full("a")

        handle: Any = Handle(answer)
        with pytest.raises(NoReplica, match=r"within 0\.5 s") as failed:
            await RayTier(handle, 0.5, full_timeout_s=0.1).lease("s")
        assert not isinstance(failed.value, PoolFull)

    run(body)


def test_an_avoided_replica_is_taken_when_nothing_else_comes_up() -> None:
    async def body(endpoint: Endpoint) -> None:
        handle: Any = Handle(lambda preference: LeaseGrant("a#1", endpoint, INFO))
        lease = await RayTier(handle, 60.0).lease("s", frozenset({"a#1"}))
        assert lease.replica_id == "a#1"
        assert len(handle.preferences) > 1
        other_generation = await RayTier(handle, 60.0).lease("s", frozenset({"a#0"}))
        assert other_generation.replica_id == "a#1"

    run(body)


def test_an_actor_that_cannot_be_reached_is_named() -> None:
    async def body(endpoint: Endpoint) -> None:
        nowhere = Endpoint("127.0.0.1", 1, new_secret())
        handle: Any = Handle(lambda preference: LeaseGrant("a#1", nowhere, INFO))
        with pytest.raises(NoReplica, match="127.0.0.1:1 does not answer"):
            await RayTier(handle, 0.2).lease("s")

    run(body)


def test_a_replica_out_of_reach_is_asked_last_by_the_next_sequence_too() -> None:
    async def body(endpoint: Endpoint) -> None:
        nowhere = Endpoint("127.0.0.1", 1, new_secret())

        def answer(preference: Preference) -> Answer:
            if "a" in preference.avoid:
                return LeaseGrant("b#1", endpoint, INFO)
            return LeaseGrant("a#1", nowhere, INFO)

        handle: Any = Handle(answer)
        tier = RayTier(handle, 60.0)
        assert [(await tier.lease(name)).replica_id for name in "st"] == ["b#1", "b#1"]
        assert [preference.avoid for preference in handle.preferences] == [set(), {"a"}, {"a"}]

    run(body)


def test_a_replica_without_room_for_a_call_is_full_not_lost() -> None:
    async def body(endpoint: Endpoint) -> None:
        handle: Any = Handle(lambda preference: LeaseGrant("a#1", endpoint, INFO))
        lease = await RayTier(handle, 60.0).lease("s")
        context = Context("s", 0, np.arange(3, dtype=np.int32), 3, 3, SamplingParams(), 1)
        with pytest.raises(NoRoom, match="a#1: 9 calls wait already"):
            await lease.verify(context, want_laws=False)

    run(body)


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

    run(body)


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

    run(body)

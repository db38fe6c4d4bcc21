"""A lease ends with its consumer, also with one that leaves without a word."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from actors.messages import ReplicaInfo
from actors.wire.access import Endpoint
from cluster import pools
from cluster.pools import LeaseGrant, Pool


class Leader:
    """An actor's handle: every method answers at once, but for the end of a sequence that was not closed."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self._ended: dict[str, asyncio.Event] = {}

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self, f"on_{name}"))

    async def on_attend(self, sequence_id: str, lease: str) -> None:
        self._ended[sequence_id] = asyncio.Event()

    async def on_wait_closed(self, sequence_id: str, lease: str) -> None:
        await self._ended[sequence_id].wait()

    async def on_close(self, sequence_id: str, lease: str = "") -> None:
        self.closed.append(sequence_id)
        self._ended[sequence_id].set()


def pool_of(leader: Leader) -> Pool:
    pool: Any = object.__new__(Pool)
    pool._tag = "pool-0"
    pool._settings = SimpleNamespace(name="draft", spec=SimpleNamespace(max_sequences=2))
    pool._group = SimpleNamespace(leader=leader, endpoint=Endpoint("h", 1, b""), generation=1, alive=lambda: True)
    pool._info = ReplicaInfo(0, "m", 10, 10, 1, 1, "")
    pool._leases, pool._closing, pool._draining = {}, set(), asyncio.Event()
    pool._spans, pool._updating, pool._mute = None, False, -1
    return pool


async def granted(pool: Pool, sequence_id: str) -> Any:
    stream = pool.lease(sequence_id)
    assert isinstance(await anext(stream), LeaseGrant)
    assert await pool.num_leases() == 1
    return stream


def test_a_lease_whose_consumer_never_comes_back_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "TAKEN_S", 0.05)

    async def body() -> None:
        leader = Leader()
        pool = pool_of(leader)
        stream = await granted(pool, "s")  # and stays at its `yield`
        async with asyncio.timeout(5):
            while leader.closed != ["s"]:
                await asyncio.sleep(0.01)
        assert await pool.num_leases() == 0
        await stream.aclose()
        assert leader.closed == ["s"]

    asyncio.run(body())


def test_a_lease_that_is_taken_lives_until_its_sequence_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "TAKEN_S", 0.05)

    async def body() -> None:
        leader = Leader()
        pool = pool_of(leader)
        stream = await granted(pool, "s")
        rest = asyncio.create_task(anext(stream, None))
        await asyncio.sleep(0.2)
        assert await pool.num_leases() == 1
        await leader.on_close("s")
        assert await rest is None
        assert await pool.num_leases() == 0
        assert leader.closed == ["s"]

    asyncio.run(body())


def test_a_consumer_that_is_cancelled_frees_its_sequence_once() -> None:
    async def body() -> None:
        leader = Leader()
        pool = pool_of(leader)
        rest = asyncio.create_task(anext(await granted(pool, "s")))
        await asyncio.sleep(0.01)
        rest.cancel()
        await asyncio.wait({rest})
        await asyncio.sleep(0.01)
        assert leader.closed == ["s"]
        assert await pool.num_leases() == 0

    asyncio.run(body())

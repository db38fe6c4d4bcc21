"""Bugs that were found once and must not come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.ingress.deployment import while_taken
from cluster.leases import RayLease
from cluster.pools import LeaseGrant


class Stream:
    """A lease's stream that ends when it is told to."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> object:
        await self.end.wait()
        raise StopAsyncIteration

    def cancel(self) -> None:
        """Ends it too."""
        self.end.set()


@pytest.mark.parametrize("ended", [True, False])
def test_a_lease_that_its_pool_ended_closes_nothing(ended: bool) -> None:
    """Its name may stand for a later lease on the same replica by then."""

    async def scenario() -> list[str]:
        closed: list[str] = []
        stream = Stream()

        async def close(sequence_id: str) -> None:
            closed.append(sequence_id)
            stream.end.set()

        actor: Any = SimpleNamespace(close=SimpleNamespace(remote=close))
        info: Any = None
        lease = RayLease("s", LeaseGrant("r", actor, info), stream)
        if ended:
            stream.end.set()
            await asyncio.sleep(0.01)
            assert lease.revoked
        await lease.release()
        return closed

    assert asyncio.run(scenario()) == ([] if ended else ["s"])


async def counting(freed: list[bool]) -> AsyncGenerator[int, None]:
    try:
        for i in range(3):
            yield i
    finally:
        await asyncio.sleep(0)
        freed.append(True)


def test_a_stream_whose_consumer_never_comes_back_frees_what_it_holds() -> None:
    async def scenario() -> None:
        freed: list[bool] = []
        stream = while_taken(counting(freed), 0.02)
        assert await anext(stream) == 0
        async with asyncio.timeout(30):
            while not freed:
                await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            await anext(stream)

    asyncio.run(scenario())


def test_a_stream_that_is_read_is_left_alone() -> None:
    async def scenario() -> list[int]:
        freed: list[bool] = []
        items = [item async for item in while_taken(counting(freed), 600)]
        assert freed == [True]
        return items

    assert asyncio.run(scenario()) == [0, 1, 2]

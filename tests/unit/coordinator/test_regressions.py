"""Bugs that were found once and must not come back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from actors.wire.codec import decode_close
from actors.wire.frames import Kind
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

        async def close(kind: Kind, payload: bytes) -> bytes:
            assert kind is Kind.CLOSE
            closed.append(decode_close(payload)[0])
            stream.end.set()
            return b""

        channel: Any = SimpleNamespace(call=close, num_sequences=0)
        grant: Any = LeaseGrant("r#1", None, None)  # type: ignore[arg-type]  # neither is looked at
        lease = RayLease("s", grant, stream, channel)
        if ended:
            stream.end.set()
            await asyncio.sleep(0.01)
            assert lease.revoked
        await lease.release()
        return closed

    assert asyncio.run(scenario()) == ([] if ended else ["s"])

"""A pool that answers leases by a script, for whoever looks for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from actors.messages import ReplicaInfo
from actors.presence import Presence
from actors.wire.access import Endpoint
from actors.wire.frames import Kind
from actors.wire.server import Call, CallServer, Handler, completed
from cluster.pools import LeaseGrant, Refused
from cluster.routing import Preference

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


def serving(body: Callable[[Endpoint], Any], **handlers: Handler) -> None:
    """Run `body` with the endpoint of an actor that closes sequences, and answers other kinds of calls as told."""

    async def main() -> None:
        taken = {Kind[kind.upper()]: handler for kind, handler in handlers.items()}
        server = CallServer({Kind.CLOSE: lambda payload: Call("s", completed(None)), **taken}, Presence(60))
        try:
            async with asyncio.timeout(60):
                await body(await server.listen("127.0.0.1"))
        finally:
            server.close()

    asyncio.run(main())

"""Several generations as one stream, and a stream of events as an HTTP response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from cluster.ingress.http.failures import Failure, Json

Item = TypeVar("Item")
DONE = "[DONE]"
_BETWEEN = 2  # items that wait for the reader, per stream: the streams themselves run ahead no further


async def side_by_side(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[tuple[int, Item], None]:
    """(which, item) of all streams as they come. The first failure ends them all; closing this closes them all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, Item | None, BaseException | None]] = asyncio.Queue(_BETWEEN * len(streams))

    async def run(index: int, stream: AsyncGenerator[Item, None]) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    await queue.put((index, item, None))
        except Exception as error:  # whoever reads gets it
            await queue.put((index, None, error))
        else:
            await queue.put((index, None, None))

    running = [asyncio.create_task(run(index, stream)) for index, stream in enumerate(streams)]
    try:
        num_open = len(streams)
        while num_open:
            index, found, error = await queue.get()
            if error is not None:
                raise error
            if found is None:
                num_open -= 1
            else:
                yield index, found
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


class Events(Response):
    """Server-sent events. A failure before the first is an ordinary response; later it is an event, and the end."""

    def __init__(self, events: AsyncGenerator[Json, None], failed: Callable[[Exception], Failure]) -> None:
        super().__init__(media_type="text/event-stream", headers={
            "cache-control": "no-cache", "x-accel-buffering": "no",  # or a proxy in front may keep events back
        })
        self._events = events
        self._failed = failed
        # The length is not known, so it is sent in chunks.
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it all. A client that leaves cancels this call, which closes the events."""
        began = False

        async def say(data: str, more: bool = True) -> None:
            nonlocal began
            if not began:
                began = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": more})

        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    await say(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
        except Exception as error:  # every failure is told; a cancellation passes through
            failure = self._failed(error)
            if not began:
                response = JSONResponse(failure.body, failure.status, headers=dict(failure.headers))
                await response(scope, receive, send)
                return
            await say(json.dumps(failure.body))
        await say(DONE, more=False)

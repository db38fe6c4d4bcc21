"""Between the rounds of a request and whoever reads its stream: neither waits for the other, within bounds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
STALL_S = 60.0  # an item that is not taken for so long has no reader any more
AHEAD_ITEMS = 16  # rounds that may be done before the reader has taken the oldest of them


class Outflow(Generic[Item]):
    """Runs a stream ahead of its reader, and merges what comes between two readings into one item.

    So a round does not wait until the one before it was sent, a slow reader gets fewer and larger messages, and a
    reader that stays away ends the stream.
    """

    def __init__(
        self, stream: AsyncGenerator[Item, None], merge: Callable[[Item, Item], Item],
        *, stall_s: float = STALL_S, ahead_items: int = AHEAD_ITEMS,
    ) -> None:
        self._stream = stream
        self._merge = merge
        self._stall_s = stall_s
        self._ahead_items = ahead_items
        self._waiting: Item | None = None
        self._num_waiting = 0
        self._changed = asyncio.Event()  # for the reader: an item waits, or the stream ended
        self._room = asyncio.Event()  # for the stream

    async def items(self) -> AsyncGenerator[Item, None]:
        """What the stream gave, in order. Raises what it raised, after everything before that.

        Closing or cancelling this closes the stream. A call that is cancelled just while Serve sends an item leaves
        this generator at its `yield`, without any word: hence the timer. Raises TimeoutError if the reader of a
        stream that was given up comes back after all.
        """
        running = asyncio.create_task(self._run())
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                item, self._waiting, self._num_waiting = self._waiting, None, 0
                self._room.set()
                if item is None:
                    await running  # it ended: with its error, if there was one
                    return
                timer = asyncio.get_running_loop().call_later(self._stall_s, self._give_up, running)
                try:
                    yield item
                finally:
                    timer.cancel()
                if running.cancelled() or running.cancelling():
                    raise TimeoutError(f"the stream was not read for {self._stall_s:g} s")
                if running.done():
                    self._changed.set()
        finally:
            running.cancel()
            await asyncio.wait({running})
            if not running.cancelled():
                running.exception()  # seen, also when nobody reads on

    async def _run(self) -> None:
        try:
            async with aclosing(self._stream):
                async for item in self._stream:
                    self._waiting = item if self._waiting is None else self._merge(self._waiting, item)
                    self._num_waiting += 1
                    self._changed.set()
                    while self._num_waiting >= self._ahead_items:
                        self._room.clear()
                        await self._room.wait()
        finally:
            self._changed.set()

    def _give_up(self, running: asyncio.Task[None]) -> None:
        if not running.done():
            logger.warning("a stream was not read for %.0f s: given up", self._stall_s)
        running.cancel()

"""Bounded concurrency and a bounded queue: overload is refused at once, never waited out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cluster.ingress.errors import QueueFull


class Admission:
    """At most `max_running` requests at once and `max_waiting` behind them, first come first served."""

    def __init__(self, max_running: int, max_waiting: int, max_wait_s: float) -> None:
        self._slots = asyncio.Semaphore(max_running)
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self.num_running = 0
        self.num_waiting = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one of the places. Raises `QueueFull`, at once or after waiting too long."""
        if self._slots.locked() and self.num_waiting >= self._max_waiting:
            raise QueueFull(self.num_waiting)
        self.num_waiting += 1
        try:
            async with asyncio.timeout(self._max_wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise QueueFull(self.num_waiting) from None
        finally:
            self.num_waiting -= 1
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1
            self._slots.release()

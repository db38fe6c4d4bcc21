"""Bounded concurrency and a bounded queue: overload is refused at once, never waited out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cluster.ingress.errors import QueueFull


class Admission:
    """At most `max_running` requests at once and `max_waiting` behind them, first come first served."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._slots = asyncio.Semaphore(max_running)
        self._max_waiting = max_waiting
        self.num_running = 0
        self.num_waiting = 0

    @asynccontextmanager
    async def slot(self, timeout_s: float) -> AsyncIterator[None]:
        """Hold one of the places. Raises `QueueFull`, or `TimeoutError` after waiting `timeout_s`."""
        if self._slots.locked() and self.num_waiting >= self._max_waiting:
            raise QueueFull(self.num_waiting)
        self.num_waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await self._slots.acquire()
        finally:
            self.num_waiting -= 1
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1
            self._slots.release()

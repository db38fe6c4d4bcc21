"""Which sequences an actor serves, so that a pool can wait for the end of each (one event loop only)."""

from __future__ import annotations

import asyncio
import time


class Presence:
    """Sequences with their last call; an unattended one ends by itself after `idle_timeout_s`."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._closed: dict[str, asyncio.Event] = {}
        self._last_call_s: dict[str, float] = {}  # monotonic

    def touch(self, sequence_id: str) -> None:
        """A call begins or ends; no effect when nobody waits for this sequence (it was closed meanwhile)."""
        if sequence_id in self._closed:
            self._last_call_s[sequence_id] = time.monotonic()

    def end(self, sequence_id: str) -> None:
        """The sequence was closed: let whoever waits for it go on."""
        self._last_call_s.pop(sequence_id, None)
        event = self._closed.pop(sequence_id, None)
        if event is not None:
            event.set()

    def end_all(self) -> None:
        """Every sequence was closed."""
        for sequence_id in list(self._closed):
            self.end(sequence_id)

    async def ended(self, sequence_id: str) -> bool:
        """Wait until the sequence was closed (True) or nobody has called for it in time (False)."""
        event = self._closed.setdefault(sequence_id, asyncio.Event())
        self._last_call_s.setdefault(sequence_id, time.monotonic())
        while not event.is_set():
            idle_s = time.monotonic() - self._last_call_s.get(sequence_id, 0.0)
            if idle_s >= self._idle_timeout_s:
                return False
            try:
                async with asyncio.timeout(self._idle_timeout_s - idle_s + 0.01):
                    await event.wait()
            except TimeoutError:
                continue  # somebody may have called meanwhile: look again
        return True

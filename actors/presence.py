"""Which sequences an actor serves, so that a pool can wait for the end of each (one event loop only)."""

from __future__ import annotations

import asyncio
import time


class Presence:
    """Sequences with their calls; one without a call for `idle_timeout_s` ends by itself."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._closed: dict[str, asyncio.Event] = {}  # one for each sequence that is attended
        self._last_call_s: dict[str, float] = {}  # monotonic
        self._num_calls: dict[str, int] = {}  # under way

    def attend(self, sequence_id: str) -> None:
        """From now on `ended` says when this sequence ends; one that ends before it is asked has ended all the same."""
        self._closed.setdefault(sequence_id, asyncio.Event())
        self._last_call_s.setdefault(sequence_id, time.monotonic())

    def begin(self, sequence_id: str) -> None:
        """A call begins: until it ends the sequence is attended, however long that takes."""
        self._num_calls[sequence_id] = self._num_calls.get(sequence_id, 0) + 1

    def finish(self, sequence_id: str) -> None:
        """A call ends; it revives no sequence that was closed meanwhile."""
        left = self._num_calls.get(sequence_id, 0) - 1
        if left > 0:
            self._num_calls[sequence_id] = left
            return
        self._num_calls.pop(sequence_id, None)
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
        """Wait until an attended sequence was closed (True) or nobody has called for it in time (False)."""
        event = self._closed.get(sequence_id)
        if event is None:
            return True
        while not event.is_set():
            if sequence_id in self._num_calls:
                idle_s = 0.0
            else:
                idle_s = time.monotonic() - self._last_call_s.get(sequence_id, 0.0)
            if idle_s >= self._idle_timeout_s:
                return False
            try:
                async with asyncio.timeout(self._idle_timeout_s - idle_s + 0.01):
                    await event.wait()
            except TimeoutError:
                continue  # somebody may have called meanwhile: look again
        return True

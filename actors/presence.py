"""Which sequences an actor serves, and for which lease of its pool, so that the pool can wait for the end of each.

One event loop only. A call for a sequence that is not held here comes from somebody who has not heard yet that its
lease has ended: taken, it would open the sequence again, and nobody would close it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field


class NotHeld(LookupError):
    """A call for a sequence whose lease has ended (or that never had one)."""

    def __init__(self, sequence_id: str) -> None:
        super().__init__("a call came for a sequence that is not leased")
        self.sequence_id = sequence_id


@dataclass(slots=True)
class _Held:
    lease: str
    last_call_s: float  # monotonic
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Presence:
    """Sequences with their calls; one without a call for `idle_timeout_s` ends by itself."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._held: dict[str, _Held] = {}
        self._num_calls: dict[str, int] = {}  # under way

    def attend(self, sequence_id: str, lease: str) -> None:
        """From now on calls for this sequence are welcome, and `ended` says when it ends.

        One that ends before that is asked has ended all the same. An earlier lease of the sequence ends with this.
        """
        held = self._held.get(sequence_id)
        if held is None or held.lease != lease:
            self._held[sequence_id] = _Held(lease, time.monotonic())
            if held is not None:
                held.ended.set()

    def check(self, sequence_id: str) -> None:
        """Raises `NotHeld` when no lease of this sequence is known."""
        if sequence_id not in self._held:
            raise NotHeld(sequence_id)

    def is_for(self, sequence_id: str, lease: str) -> bool:
        """Whether the sequence is held for this lease."""
        held = self._held.get(sequence_id)
        return held is not None and held.lease == lease

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
        if (held := self._held.get(sequence_id)) is not None:
            held.last_call_s = time.monotonic()

    def end(self, sequence_id: str) -> None:
        """The sequence was closed: let whoever waits for it go on."""
        held = self._held.pop(sequence_id, None)
        if held is not None:
            held.ended.set()

    def end_all(self) -> None:
        """Every sequence was closed."""
        for sequence_id in list(self._held):
            self.end(sequence_id)

    async def ended(self, sequence_id: str, lease: str) -> bool:
        """Wait until the lease has ended (True) or nobody has called for its sequence in time (False)."""
        held = self._held.get(sequence_id)
        if held is None or held.lease != lease:
            return True
        while not held.ended.is_set():
            idle_s = 0.0 if sequence_id in self._num_calls else time.monotonic() - held.last_call_s
            if idle_s >= self._idle_timeout_s:
                return False
            try:
                async with asyncio.timeout(self._idle_timeout_s - idle_s + 0.01):
                    await held.ended.wait()
            except TimeoutError:
                continue  # somebody may have called meanwhile: look again
        return True

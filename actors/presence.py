"""Which sequences an actor serves, and for which lease of its pool, so that the pool can wait for the end of each.

One event loop only. A call for a sequence that is not held here comes from somebody who has not heard yet that its
lease has ended: taken, it would open the sequence again, and nobody would close it.

A coordinator that dies says nothing, and Serve keeps its leases open: that its connection ended is the first that is
heard of it. To a coordinator that lives a connection that ended is a lost replica, so it will not call for the lease
again either.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

LEFT_S = 1.0  # a coordinator that lives gives its lease up by itself within this time after its connection ended


class NotHeld(LookupError):
    """A call for a sequence whose lease has ended (or that never had one)."""

    def __init__(self, sequence_id: str) -> None:
        super().__init__("a call came for a sequence that is not leased")
        self.sequence_id = sequence_id


@dataclass(slots=True)
class _Held:
    lease: str
    last_call_s: float  # monotonic
    caller: object = None  # the connection over which its latest call came
    left_s: float | None = None  # monotonic; when that ended
    ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)  # it has ended, or its caller has left


class Presence:
    """Sequences with their calls. One without a call for `idle_timeout_s` ends by itself, and one whose caller's
    connection has ended soon after that."""

    def __init__(self, idle_timeout_s: float, left_timeout_s: float = LEFT_S) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._left_timeout_s = left_timeout_s
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
                _let_go(held)

    def check(self, sequence_id: str) -> None:
        """Raises `NotHeld` when no lease of this sequence is known."""
        if sequence_id not in self._held:
            raise NotHeld(sequence_id)

    def is_for(self, sequence_id: str, lease: str) -> bool:
        """Whether the sequence is held for this lease."""
        held = self._held.get(sequence_id)
        return held is not None and held.lease == lease

    def begin(self, sequence_id: str, caller: object = None) -> None:
        """A call begins: until it ends, or the connection over which it came, the sequence is attended."""
        self._num_calls[sequence_id] = self._num_calls.get(sequence_id, 0) + 1
        if (held := self._held.get(sequence_id)) is not None:
            held.caller, held.left_s = caller, None

    def left(self, caller: object) -> int:
        """A connection has ended. Answers how many sequences nobody can call for any more unless another one comes."""
        deserted = [held for held in self._held.values() if held.caller is caller]
        for held in deserted:
            held.left_s = time.monotonic()
            held.news.set()
        return len(deserted)

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
            _let_go(held)

    def end_all(self) -> None:
        """Every sequence was closed."""
        for sequence_id in list(self._held):
            self.end(sequence_id)

    async def ended(self, sequence_id: str, lease: str) -> bool:
        """Wait until the lease has ended (True) or nobody calls for its sequence any more (False)."""
        held = self._held.get(sequence_id)
        if held is None or held.lease != lease:
            return True
        while not held.ended:
            left_s = self._left_s(sequence_id, held)
            if left_s <= 0.0:
                return False
            held.news.clear()
            try:
                async with asyncio.timeout(left_s + 0.01):
                    await held.news.wait()
            except TimeoutError:
                continue  # somebody may have called meanwhile: look again
        return True

    def _left_s(self, sequence_id: str, held: _Held) -> float:
        """How long a sequence stays if nobody calls."""
        now = time.monotonic()
        if held.left_s is not None:
            return self._left_timeout_s - (now - held.left_s)
        return self._idle_timeout_s - (0.0 if sequence_id in self._num_calls else now - held.last_call_s)


def _let_go(held: _Held) -> None:
    held.ended = True
    held.news.set()

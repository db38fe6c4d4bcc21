"""An emulated network hop: what arrives or leaves does so a set time later, in the same order."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

Act = Callable[[], None]


class Hop(Protocol):
    """What lies between an actor and its callers."""

    def pass_on(self, act: Act) -> None:
        """Run `act`, which hands something on, when it has come over. For the event loop's thread."""
        ...


class NoHop:
    """Nothing: the network is the real one."""

    def pass_on(self, act: Act) -> None:
        """Run `act` at once."""
        act()


class SlowHop:
    """`seconds` of delay for everything. Belongs to the event loop that makes it.

    A thread of its own sleeps: timers of event loops count whole milliseconds, as much as a hop may be.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._on_the_way: queue.SimpleQueue[tuple[float, Act] | None] = queue.SimpleQueue()
        threading.Thread(target=self._carry, name="hop", daemon=True).start()

    def pass_on(self, act: Act) -> None:
        """Run `act` in the event loop, `seconds` from now."""
        self._on_the_way.put((time.monotonic() + self._seconds, act))

    def close(self) -> None:
        """Carry what is on the way, then end."""
        self._on_the_way.put(None)

    def _carry(self) -> None:
        while (item := self._on_the_way.get()) is not None:
            due_s, act = item
            time.sleep(max(0.0, due_s - time.monotonic()))
            try:
                self._loop.call_soon_threadsafe(act)
            except RuntimeError:  # the loop has ended, and its connections with it
                return


def open_hop(seconds: float) -> NoHop | SlowHop:
    """A hop of `seconds` for the running event loop; 0: none."""
    return SlowHop(seconds) if seconds > 0 else NoHop()

"""An event loop whose clock jumps to the next timer as soon as nothing is ready: hours pass in seconds."""

from __future__ import annotations

import asyncio
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StandStill(RuntimeError):
    """Everything waits and no timer is left: nothing would ever happen again."""


class VirtualLoop(BaseEventLoop):
    """Runs coroutines on simulated seconds, which begin at 0. Knows no threads, sockets or signals."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Jump(self)  # what BaseEventLoop waits in between two turns
        self._now = 0.0
        self._at_rest: list[Callable[[], None]] = []

    def time(self) -> float:
        """Simulated seconds."""
        return self._now

    def at_rest(self, callback: Callable[[], None]) -> None:
        """Call when all that happens at this instant has happened, before the clock moves on.

        What is decided there depends on no order among simultaneous events.
        """
        self._at_rest.append(callback)

    def wait(self, timeout_s: float | None) -> None:
        """Let `timeout_s` pass, None: without end. Raises `StandStill`."""
        if timeout_s is not None and timeout_s <= 0:
            return
        if self._at_rest:
            callbacks, self._at_rest = self._at_rest, []
            for callback in callbacks:
                callback()
            return
        if timeout_s is None:
            raise StandStill(f"at {self._now:g} simulated s everything waits for something that nobody will do")
        self._now += timeout_s

    def _process_events(self, event_list: list[Any]) -> None:
        """No descriptors, so no events of theirs."""

    def _write_to_self(self) -> None:
        """Nothing to be woken up from: this loop never sleeps."""


class _Jump:
    """In the place of a selector."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout_s: float | None = None) -> list[Any]:
        self._loop.wait(timeout_s)
        return []


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in simulated time. Raises `StandStill`, and what `main` raises."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def running_loop() -> VirtualLoop:
    """The simulated loop that runs the caller. Raises `RuntimeError` on another one."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError("simulated replicas run in simulated time only: use cluster.simulation.clock.run")
    return loop

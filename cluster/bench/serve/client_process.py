"""The load's client in a process of its own, so that what measures does not slow what is measured."""

from __future__ import annotations

import asyncio
import functools
import itertools
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from cluster.bench.serve.asks import Ask, Outcome
from cluster.bench.serve.client import closed_loop, open_loop, steered_loop
from cluster.edge.access import Access

STOP_TIMEOUT_S = 10.0
TICK_S = 0.5
ENDED = -1
_SPAWN = multiprocessing.get_context("spawn")  # a fork would inherit gRPC's and Ray's threads


class ClientFailed(RuntimeError):
    """The client process ended before its load was done."""


@dataclass(frozen=True, slots=True)
class Closed:
    """`num_streams` clients that go round `asks` for `duration_s` (None: through them once)."""

    asks: Sequence[Ask]
    num_streams: int
    duration_s: float | None = None
    application: str | None = None  # of several that Serve runs; None: the only one


@dataclass(frozen=True, slots=True)
class Open:
    """Each request at its own time."""

    asks: Sequence[Ask]


class Steered:
    """Closed loops side by side whose streams come and go as this process says, while the load runs."""

    def __init__(self, loops: Sequence[Sequence[Ask]], application: str | None = None) -> None:
        """What the streams of each loop go round; at first there are no streams."""
        self.loops = [tuple(asks) for asks in loops]
        self.application = application
        self._numbers = _SPAWN.Array("i", [0] * len(loops), lock=False)  # shared memory

    def steer(self, numbers: Sequence[int]) -> None:
        """So many streams of each loop from now on; those that are too many end with their request."""
        self._numbers[:] = list(numbers)

    def end(self) -> None:
        """No further request; the load is done when those that run have ended."""
        self.steer([ENDED] * len(self.loops))

    def wanted(self, index: int) -> int | None:
        """Streams of a loop, in either process; None: no more."""
        number = int(self._numbers[index])
        return None if number == ENDED else number


def put_load(address: str | Access, load: Closed | Open | Steered) -> Iterator[Outcome | None]:
    """Outcomes as they come, and None every `TICK_S`. Raises `ClientFailed`; closing the iterator ends the process."""
    ours, theirs = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_main, args=(address, load, theirs), daemon=True, name="load")
    process.start()
    theirs.close()
    try:
        while True:
            try:
                if not ours.poll(TICK_S):
                    yield None
                    continue
                item = ours.recv()
            except EOFError:
                raise ClientFailed("the client process ended early") from None
            if item is None:
                return
            if isinstance(item, str):
                raise ClientFailed(item)
            yield item
    finally:
        ours.close()  # a process that still sends ends by it
        process.join(STOP_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()


def _main(address: str | Access, load: Closed | Open | Steered, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted as well, and ends this process
    try:
        if isinstance(load, Open):
            asyncio.run(open_loop(address, load.asks, pipe.send))
        elif isinstance(load, Steered):
            asyncio.run(_steered(address, load, pipe))
        else:
            asyncio.run(_closed(address, load, pipe))
    except Exception as error:  # told to the parent
        while isinstance(error, ExceptionGroup):  # of tasks: the first is as good as any
            error = error.exceptions[0]
        pipe.send(f"{type(error).__name__}: {error}")
    else:
        pipe.send(None)


async def _closed(address: str | Access, load: Closed, pipe: Connection) -> None:
    asks = load.asks if load.duration_s is None else itertools.cycle(load.asks)
    await closed_loop(address, asks, load.num_streams, pipe.send, load.duration_s, load.application)


async def _steered(address: str | Access, load: Steered, pipe: Connection) -> None:
    async with asyncio.TaskGroup() as running:
        for index, asks in enumerate(load.loops):
            wanted = functools.partial(load.wanted, index)
            running.create_task(steered_loop(address, itertools.cycle(asks), wanted, pipe.send, load.application))

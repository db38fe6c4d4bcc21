"""The load's client in a process of its own, so that what measures does not slow what is measured."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from cluster.bench.serve.asks import Ask, Outcome
from cluster.bench.serve.client import closed_loop, open_loop
from cluster.edge.access import Access

STOP_TIMEOUT_S = 10.0
TICK_S = 0.5


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


@dataclass(frozen=True, slots=True)
class Staged:
    """Closed loops side by side or one after another, each from its own time on."""

    parts: Sequence[tuple[float, Closed]]  # (s after the start, loop)


def put_load(address: str | Access, load: Closed | Open | Staged) -> Iterator[Outcome | None]:
    """Outcomes as they come, and None every `TICK_S`. Raises `ClientFailed`; closing the iterator ends the process."""
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit gRPC's and Ray's threads
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_main, args=(address, load, theirs), daemon=True, name="load")
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


def _main(address: str | Access, load: Closed | Open | Staged, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted as well, and ends this process
    try:
        if isinstance(load, Open):
            asyncio.run(open_loop(address, load.asks, pipe.send))
        elif isinstance(load, Staged):
            asyncio.run(_staged(address, load, pipe))
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


async def _staged(address: str | Access, load: Staged, pipe: Connection) -> None:
    async def later(at_s: float, part: Closed) -> None:
        await asyncio.sleep(at_s)
        await _closed(address, part, pipe)

    async with asyncio.TaskGroup() as running:
        for at_s, part in load.parts:
            running.create_task(later(at_s, part))

"""Streams that never cease: clients that ask, read token ids, and ask again; what each saw is kept."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import grpc
import grpc.aio

from cluster.bench.chaos.judge import HUNG, OK, Stream
from cluster.bench.chaos.timeline import Tick
from cluster.cli import client
from cluster.cli.client import Options
from cluster.client import AsyncClient, CallFailed, Origin, Retry
from cluster.rpc import outrider_pb2 as pb
from cluster.rpc import outrider_pb2_grpc

Answer = TypeVar("Answer")

PATIENCE_S = 90.0  # of a stream: whatever dies, it must have an end by then
GRACE_S = 10.0  # beyond it a client waits no more, and calls the stream hung
PATIENT = Retry(attempts=200, resumptions=200, longest_s=1.0)  # whatever dies is back within `PATIENCE_S`
PAUSE_S = 0.2  # before asking again after a failure
PROMPTS = (
    "Invent a name for a horse and begin a surprising story about it.",
    "List three planets and one fact about each.",
    "Explain how a ferry finds its way in fog.",
    "Write a letter to a lighthouse keeper.",
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, whose ids follow from it alone."""

    name: str
    prompt: str | tuple[int, ...]  # text, or its ids
    options: Options

    def message(self, *, speculation: bool = True) -> pb.GenerateRequest:
        """As it is sent."""
        text = self.prompt if isinstance(self.prompt, str) else ""
        sent = client.request(text, replace(self.options, speculation=speculation), chat=False)
        if not isinstance(self.prompt, str):
            sent.token_ids.ids.extend(self.prompt)
        sent.sampling.ignore_eos = True
        return sent


def asks(max_tokens: int, prompts: Sequence[str] = PROMPTS) -> tuple[Ask, ...]:
    """Greedy and seeded ones by turns."""
    found = []
    for number, prompt in enumerate(prompts):
        found.append(Ask(f"greedy {number}", prompt, Options(temperature=0.0, max_tokens=max_tokens)))
        seeded = Options(temperature=0.8, seed=1000 + number, max_tokens=max_tokens)
        found.append(Ask(f"seeded {number}", prompt, seeded))
    return tuple(found)


def long_asks(count: int, num_tokens: int) -> tuple[Ask, ...]:
    """Long prompts that share nothing, for filling KV memory."""
    def prompt(number: int) -> tuple[int, ...]:
        return tuple(8 + (number * 31 + i * (7 + number)) % 200 for i in range(num_tokens))

    return tuple(
        Ask(f"long {number}", prompt(number), Options(temperature=0.0, max_tokens=24)) for number in range(count)
    )


class Clients:
    """The event loop that all clients of this process share (gRPC wants but one), in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="clients", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Answer]) -> Future[Answer]:
        """Begin some work there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End the loop, whatever is still under way."""
        self._loop.call_soon_threadsafe(self._loop.stop)


def answers(
    clients: Clients, address: str, wanted: Sequence[Ask], *, speculation: bool
) -> dict[str, tuple[int, ...]]:
    """The ids of each, all at once. Raises RuntimeError when one is refused."""

    async def ask_all() -> list[Stream]:
        async with stub_of(address) as stub:
            return list(await asyncio.gather(*(read(stub, ask, [], speculation=speculation) for ask in wanted)))

    streams = clients.run(ask_all()).result()
    for stream in streams:
        if stream.status != OK:
            raise RuntimeError(f"an undisturbed request ended with {stream.status}: {stream.detail}")
    return {stream.ask: tuple(stream.ids) for stream in streams}


class Load:
    """`num_streams` clients, from `start` to `stop`."""

    def __init__(
        self, clients: Clients, address: str, wanted: Sequence[Ask], num_streams: int, num_resumed: int = 0
    ) -> None:
        """`num_resumed`: of the clients, those that read through `cluster.client`, which resumes what is cut."""
        self._clients = clients
        self._address = address
        self._asks = wanted
        self._num_streams = num_streams
        self._num_resumed = num_resumed
        self._ending = threading.Event()
        self._running: Future[None] | None = None
        self.ticks: list[Tick] = []
        self.streams: list[Stream] = []  # all that were begun

    def start(self) -> None:
        """Begin to ask."""
        self._running = self._clients.run(self._run())

    def wait_spoken(self, within_s: float) -> bool:
        """Until every client has got tokens; False: not within this time."""
        end_s = time.monotonic() + within_s
        while time.monotonic() < end_s:
            if sum(bool(stream.times_s) for stream in list(self.streams)) >= self._num_streams:
                return True
            time.sleep(0.02)
        return False

    def stop(self) -> None:
        """Ask no more, and wait until what is under way has ended."""
        self._ending.set()
        if self._running is not None:
            self._running.result()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as clients:
            for number in range(self._num_streams):
                clients.create_task(self._ask(number))

    async def _ask(self, number: int) -> None:
        """One client: each request until it is answered, then the next."""
        turn = itertools.cycle([*self._asks[number % len(self._asks) :], *self._asks[: number % len(self._asks)]])
        resumed = number < self._num_resumed
        async with stub_of(self._address) as stub, AsyncClient(self._address, retry=PATIENT) as own:
            ask = next(turn)
            while not self._ending.is_set():
                stream = Stream(ask.name, time.monotonic(), resumed=resumed)
                self.streams.append(stream)
                await (read_resumed(own, ask, self.ticks, stream) if resumed else read(stub, ask, self.ticks, stream))
                if stream.status == OK:
                    ask = next(turn)
                else:  # a retry
                    await asyncio.sleep(PAUSE_S)


async def read(
    stub: Any, ask: Ask, ticks: list[Tick], stream: Stream | None = None, *, speculation: bool = True,
    timeout_s: float = PATIENCE_S,
) -> Stream:
    """One request to its end, whatever that is."""
    stream = stream or Stream(ask.name, time.monotonic())
    call = stub.GenerateStream(ask.message(speculation=speculation), timeout=timeout_s)
    try:
        async with asyncio.timeout(timeout_s + GRACE_S):
            async for chunk in call:
                note(stream, chunk, ticks)
        if stream.status == HUNG:
            stream.detail = "the stream ended without its last chunk"
    except grpc.aio.AioRpcError as error:
        stream.status, stream.detail = error.code().name, " ".join((error.details() or "").split())
    except TimeoutError:
        stream.detail = f"still running {GRACE_S:g} s after its deadline"
    finally:
        call.cancel()  # no effect on a finished call
        stream.ended_s = time.monotonic()
    return stream


async def read_resumed(own: AsyncClient, ask: Ask, ticks: list[Tick], stream: Stream) -> None:
    """One request to its end through the project's own client."""
    chunks = own.stream(ask.message(), timeout_s=PATIENCE_S)
    try:
        async with asyncio.timeout(PATIENCE_S + GRACE_S), chunks:
            async for chunk in chunks:
                accepted = sum(token.origin is Origin.ACCEPTED for token in chunk.tokens)
                _came(stream, [token.id for token in chunk.tokens], accepted, ticks)
                if chunk.finish is not None:
                    _finished(stream, chunk.finish.speculation)
    except CallFailed as error:
        stream.status, stream.detail = error.code.name, error.details
    except TimeoutError:
        stream.detail = f"still running {GRACE_S:g} s after its deadline"
    finally:
        stream.ended_s = time.monotonic()


def note(stream: Stream, chunk: pb.GenerateChunk, ticks: list[Tick]) -> None:
    """What a chunk brings."""
    accepted = sum(token.origin == pb.ORIGIN_ACCEPTED for token in chunk.tokens)
    _came(stream, [token.id for token in chunk.tokens], accepted, ticks)
    if chunk.HasField("finish"):
        _finished(stream, chunk.finish.speculation)


def _came(stream: Stream, ids: Sequence[int], num_accepted: int, ticks: list[Tick]) -> None:
    if ids:
        now = time.monotonic()
        stream.times_s.append(now)
        stream.ids.extend(ids)
        ticks.append(Tick(now, len(ids), num_accepted))


def _finished(stream: Stream, figures: pb.SpeculationFigures) -> None:
    stream.status = OK
    stream.moves = figures.num_lease_moves
    stream.degraded = dict(figures.num_degraded_by_reason)


class stub_of:
    """A stub over a connection of its own, which finds a server that has come back at once."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=[
            ("grpc.use_local_subchannel_pool", 1), ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500),
        ])

    async def __aenter__(self) -> Any:
        return outrider_pb2_grpc.OutriderStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)

"""The asynchronous gRPC client that makes the load: closed loops and open loops."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from cluster.bench.serve.asks import LEFT, LOST, OK, Ask, Figures, Outcome
from cluster.edge.access import Access, reached
from cluster.rpc import outrider_pb2 as pb
from cluster.rpc import outrider_pb2_grpc

INFO_TIMEOUT_S = 30.0
NUM_CHANNELS = 4  # a server may bound the streams of one connection
GRACE_S = 30.0  # beyond its deadline no call may go on: one that does is lost
REFUSED_S = 0.2  # a refused client comes back, but not in a busy loop
STEERED_S = 0.1  # how often the number of streams is looked up
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

OnOutcome = Callable[[Outcome], None]


def message(ask: Ask) -> pb.GenerateRequest:
    """The request on the wire."""
    out = pb.GenerateRequest()
    if ask.turns:
        for role, content in ask.turns:
            out.chat.messages.add(role=role, content=content)
    else:
        out.token_ids.ids.extend(ask.token_ids)
    out.sampling.max_tokens = ask.max_tokens
    out.sampling.temperature = ask.temperature
    if ask.seed is not None:
        out.sampling.seed = ask.seed
    if ask.ignore_eos:
        out.sampling.ignore_eos = True
    if not ask.speculation:
        out.speculation.enabled = False
    elif ask.lookahead is not None:
        out.speculation.lookahead_tokens = ask.lookahead
    return out


def figures(finish: pb.Finish) -> Figures:
    """What a finish says."""
    usage, found = finish.usage, finish.speculation
    return Figures(
        num_prompt_tokens=usage.prompt_tokens, num_completion_tokens=usage.completion_tokens,
        target_cached_tokens=usage.cached_tokens if usage.HasField("cached_tokens") else None,
        cached_tokens=dict(found.num_cached_prompt_tokens_by_tier), num_rounds=found.num_rounds,
        num_drafted=found.num_drafted, num_accepted=found.num_accepted, num_recovered=found.num_recovered,
        accepted_by_tier=dict(found.num_accepted_by_tier), overlapped=dict(found.num_overlapped_by_outcome),
        model_s=found.model_s, control_s=found.control_s, control_round_p50_s=found.control_round_p50_s,
        lease_s=found.lease_s,
        num_degraded=found.num_degraded_rounds, num_lease_moves=found.num_lease_moves,
    )


def longest_prompt(address: str | Access, answer_tokens: int) -> int:
    """Tokens that a prompt may have with room for `answer_tokens`, as the service says. Raises grpc.RpcError."""
    with reached(address).channel() as channel:
        stub = outrider_pb2_grpc.OutriderStub(channel)  # type: ignore[no-untyped-call]  # generated
        limits = stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=INFO_TIMEOUT_S).limits
    room = limits.max_context_tokens - answer_tokens
    return int(min(room, limits.max_prompt_tokens) if limits.max_prompt_tokens else room)


@asynccontextmanager
async def stubs(address: str | Access, count: int = NUM_CHANNELS) -> AsyncIterator[list[Any]]:
    """Stubs over connections of their own."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]
    channels = [reached(address).aio_channel(options) for _ in range(count)]
    try:
        yield [outrider_pb2_grpc.OutriderStub(channel) for channel in channels]  # type: ignore[no-untyped-call]
    finally:
        for channel in channels:
            await channel.close(None)


async def send(stub: Any, ask: Ask, due_s: float, application: str | None = None) -> Outcome:
    """One request to its end. Raises nothing for what a server may do.

    `application`: which one of several that Serve runs; None: the only one.
    """
    times: list[float] = []
    counts: list[int] = []
    texts: list[str] = []
    finish: pb.Finish | None = None
    status, detail = LOST, "the stream ended without its last chunk"
    metadata = None if application is None else (("application", application),)
    call = stub.GenerateStream(message(ask), timeout=ask.timeout_s, metadata=metadata)
    try:
        async with asyncio.timeout(ask.timeout_s + GRACE_S):
            async for chunk in call:
                if chunk.tokens:
                    times.append(time.monotonic())
                    counts.append(len(chunk.tokens))
                texts.append(chunk.text)
                if chunk.HasField("finish"):
                    finish, status, detail = chunk.finish, OK, ""
                elif ask.leave_after_tokens is not None and sum(counts) >= ask.leave_after_tokens:
                    status, detail = LEFT, ""
                    break
    except grpc.aio.AioRpcError as error:
        status, detail = error.code().name, " ".join((error.details() or "").split())
    except TimeoutError:
        detail = f"still running {GRACE_S:g} s after its deadline"
    finally:
        call.cancel()  # no effect on a finished call
    if finish is not None and finish.usage.completion_tokens < sum(counts):
        status, detail = LOST, f"{sum(counts)} tokens came, the finish counts {finish.usage.completion_tokens}"
    return Outcome(
        ask=ask, due_s=due_s, end_s=time.monotonic(), status=status, times_s=tuple(times), counts=tuple(counts),
        text="".join(texts), figures=figures(finish) if finish is not None and status == OK else None, detail=detail,
    )


async def closed_loop(
    address: str | Access, asks: Iterable[Ask], num_streams: int, on_outcome: OnOutcome,
    duration_s: float | None = None, application: str | None = None,
) -> None:
    """`num_streams` clients, each of which sends its next request when the last one has ended.

    Ends when `asks` are used up, or when `duration_s` is over (None: never) and what runs then has ended.
    """
    rest = iter(asks)
    async with stubs(address) as connected:
        begin = time.monotonic()

        async def stream(stub: Any) -> None:
            while duration_s is None or time.monotonic() - begin < duration_s:
                ask = next(rest, None)
                if ask is None:
                    return
                outcome = await send(stub, ask, time.monotonic(), application)
                on_outcome(outcome)
                if outcome.status not in (OK, LEFT):
                    await asyncio.sleep(REFUSED_S)

        await asyncio.gather(*(stream(connected[i % len(connected)]) for i in range(num_streams)))


async def steered_loop(
    address: str | Access, asks: Iterable[Ask], wanted: Callable[[], int | None], on_outcome: OnOutcome,
    application: str | None = None,
) -> None:
    """As many clients as `wanted` says, each as in `closed_loop`; it is asked again and again.

    None: nobody sends another request; returns when what runs then has ended.
    """
    rest = iter(asks)
    streams: dict[int, asyncio.Task[None]] = {}

    def number() -> int:
        return wanted() or 0

    async with stubs(address) as connected, asyncio.TaskGroup() as running:

        async def stream(place: int) -> None:
            while place < number():
                outcome = await send(connected[place % len(connected)], next(rest), time.monotonic(), application)
                on_outcome(outcome)
                if outcome.status not in (OK, LEFT):
                    await asyncio.sleep(REFUSED_S)

        while wanted() is not None:
            for place in range(number()):
                if place not in streams or streams[place].done():
                    streams[place] = running.create_task(stream(place))
            await asyncio.sleep(STEERED_S)


async def open_loop(address: str | Access, asks: Sequence[Ask], on_outcome: OnOutcome) -> None:
    """Send each request at its `at_s`, whatever became of the others; return when all have ended."""
    async with stubs(address) as connected:
        begin = time.monotonic()
        turn = itertools.cycle(connected)

        async def one(stub: Any, ask: Ask) -> None:
            on_outcome(await send(stub, ask, begin + ask.at_s))

        async with asyncio.TaskGroup() as running:
            for ask in sorted(asks, key=lambda each: each.at_s):
                await asyncio.sleep(max(0.0, begin + ask.at_s - time.monotonic()))
                running.create_task(one(next(turn), ask))

"""An emulated hop: everything comes over, in order, and not before its time."""

from __future__ import annotations

import asyncio
import time

import pytest

from actors.messages import Context, Draft, DraftShape
from actors.presence import Presence
from actors.sampling.params import SamplingParams
from actors.wire.codec import decode_draft, decode_propose, encode_propose
from actors.wire.frames import Kind
from actors.wire.hop import NoHop, SlowHop, open_hop
from actors.wire.server import Announced, Call, CallServer, completed
from cluster.channel import CallFailed, Channel
from tests.unit.emulation.devices import WORDS

HOP_S = 0.003
CONTEXT = Context("s", 0, WORDS[:3], 3, 3, SamplingParams(), 1)


def test_what_is_passed_on_comes_over_in_order_and_never_early() -> None:
    async def body() -> list[tuple[int, float]]:
        hop, began_s = open_hop(HOP_S), time.monotonic()
        came: list[tuple[int, float]] = []
        last = asyncio.Event()
        for i in range(50):
            hop.pass_on(lambda i=i: came.append((i, time.monotonic() - began_s)))  # type: ignore[misc]
        hop.pass_on(last.set)
        async with asyncio.timeout(30):
            await last.wait()
        assert isinstance(hop, SlowHop)
        hop.close()
        return came

    came = asyncio.run(body())
    assert [i for i, _ in came] == list(range(50))
    assert min(after_s for _, after_s in came) >= HOP_S


def test_no_hop_is_no_detour() -> None:
    came: list[int] = []
    hop = open_hop(0.0)
    assert isinstance(hop, NoHop)
    hop.pass_on(lambda: came.append(1))
    assert came == [1]


def test_calls_and_answers_over_a_hop_are_the_same_and_each_waits_twice() -> None:
    def propose(payload: bytes) -> Call:
        context, shape = decode_propose(payload)
        if shape.num_tokens == 0:
            raise ValueError("refused")
        return Call(context.sequence_id, completed(Draft(WORDS[: shape.num_tokens])))

    async def body() -> None:
        server = CallServer({Kind.PROPOSE: propose}, Presence(60), hop_s=HOP_S)
        channel = await Channel.connect(await server.listen("127.0.0.1"))
        began_s = time.monotonic()
        calls = [channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(k))) for k in (1, 2, 0)]
        async with asyncio.timeout(30):
            for k, call in zip((1, 2), calls, strict=False):
                assert decode_draft(await call).tokens.tolist() == WORDS[:k].tolist()
            with pytest.raises(CallFailed, match="ValueError"):
                await calls[2]
        assert time.monotonic() - began_s >= 2 * HOP_S
        server.close()

    asyncio.run(body())


def test_a_part_that_overtook_its_call_is_not_lost_on_the_hop() -> None:
    begun: list[bytes] = []

    def verify(payload: bytes) -> Announced:
        def begin(part: bytes) -> Call:
            begun.append(part)
            return Call("s", completed(None))

        return Announced(begin)

    async def body() -> None:
        server = CallServer({Kind.VERIFY: verify, Kind.CLOSE: lambda _: Call("s", completed(None))}, Presence(60),
                            hop_s=HOP_S)
        channel = await Channel.connect(await server.listen("127.0.0.1"))
        channel.send(Kind.DRAFT, 7, b"second")
        channel.send(Kind.VERIFY, 7, b"first")
        async with asyncio.timeout(30):
            await channel.call(Kind.CLOSE, b"s")
        server.close()

    asyncio.run(body())
    assert begun == [b"second"]

"""A relay is not noticed until it is told to do harm, and then does that and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actors.presence import Presence
from actors.wire.frames import Kind
from actors.wire.server import Call, CallServer, completed
from cluster.bench.chaos.relay import Ill, Relay, Trouble
from cluster.channel import Channel, ChannelLost


def run(body: Callable[[Channel, Relay, list[bytes]], Awaitable[None]], silence_s: float = 30.0) -> None:
    """A channel through a relay to an actor that notes each close, and answers it."""
    heard: list[bytes] = []

    def close(payload: bytes) -> Call:
        heard.append(payload)
        return Call("s", completed(None))

    async def main() -> None:
        server = CallServer({Kind.CLOSE: close}, Presence(60))
        relay = Relay(await server.listen("127.0.0.1"))
        channel = await Channel.connect(await relay.listen("127.0.0.1"), silence_s)
        try:
            async with asyncio.timeout(30):
                await body(channel, relay, heard)
        finally:
            channel.close()
            relay.close()
            server.close()

    asyncio.run(main())


def call(channel: Channel, number: int) -> asyncio.Future[bytes]:
    return channel.call(Kind.CLOSE, b"%d" % number)


@pytest.mark.parametrize("ill", [None, Ill.DELAY, Ill.REORDER, Ill.DUPLICATE])
def test_what_only_comes_late_in_another_order_or_twice_comes_once(ill: Ill | None) -> None:
    async def body(channel: Channel, relay: Relay, heard: list[bytes]) -> None:
        relay.disturb(None if ill is None else Trouble(ill, delay_s=0.01))
        await asyncio.gather(*(call(channel, i) for i in range(40)))
        assert sorted(heard) == sorted(b"%d" % i for i in range(40))
        assert (heard != [b"%d" % i for i in range(40)]) is (ill is Ill.REORDER)
        assert bool(relay.num_hit) is (ill is not None)

    run(body)


@pytest.mark.parametrize("ill", [Ill.TRUNCATE, Ill.GARBAGE])
def test_a_connection_that_ends_in_a_message_ends_its_calls(ill: Ill) -> None:
    async def body(channel: Channel, relay: Relay, heard: list[bytes]) -> None:
        await call(channel, 1)
        relay.disturb(Trouble(ill))
        with pytest.raises(ChannelLost):
            await call(channel, 2)
        assert heard == [b"1"]

    run(body)


def test_lost_messages_are_lost_and_others_are_not() -> None:
    async def body(channel: Channel, relay: Relay, heard: list[bytes]) -> None:
        relay.disturb(Trouble(Ill.LOSE))
        lost = call(channel, 1)
        await asyncio.sleep(0.05)
        relay.disturb(None)
        await call(channel, 2)
        assert heard == [b"2"]
        assert not lost.done()

    run(body)


def test_a_silent_connection_is_given_up_in_time() -> None:
    async def body(channel: Channel, relay: Relay, heard: list[bytes]) -> None:
        await call(channel, 1)
        relay.disturb(Trouble(Ill.SILENCE))
        with pytest.raises(ChannelLost, match="says nothing"):
            await call(channel, 2)

    run(body, silence_s=0.3)


def test_the_same_seed_does_the_same_harm() -> None:
    async def hit(seed: int) -> list[bytes]:
        found: list[Any] = []

        async def body(channel: Channel, relay: Relay, heard: list[bytes]) -> None:
            relay.disturb(Trouble(Ill.LOSE, share=0.5, seed=seed))
            for i in range(30):
                call(channel, i)
            await asyncio.sleep(0.1)
            found.extend(heard)

        await asyncio.to_thread(run, body)
        return found

    async def main() -> None:
        assert await hit(1) == await hit(1) != await hit(2)

    asyncio.run(main())

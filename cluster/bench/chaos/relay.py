"""A connection's way through a bad network: a relay in front of an actor that mistreats messages on purpose.

It speaks the wire's frames (`actors.wire.frames`) and leaves the introduction, by which the two ends prove themselves
to each other, as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, replace
from enum import StrEnum

from actors.wire.access import Endpoint
from actors.wire.frames import MAX_PAYLOAD_BYTES, FrameParser, Kind, packed

READ_BYTES = 2**16
TOGETHER_S = 0.02  # messages that come within this time overtake each other
GARBAGE = b"\xff" * 64  # no frame is so long


class Ill(StrEnum):
    """What may befall messages."""

    LOSE = "lose"
    DELAY = "delay"
    REORDER = "reorder"
    DUPLICATE = "duplicate"
    TRUNCATE = "truncate"  # half a message, then the end of the connection
    CORRUPT = "corrupt"  # wrong bytes in an answer
    GARBAGE = "garbage"  # bytes that are no frame
    SILENCE = "silence"  # nothing comes any more, and nobody says so


@dataclass(frozen=True, slots=True)
class Trouble:
    """What befalls which share of the messages."""

    ill: Ill
    share: float = 1.0
    delay_s: float = 0.1  # at most
    seed: int = 0

    def befalls(self, kind: int, answers: bool) -> bool:
        """Whether messages of this kind, on their way to or from the actor, are concerned."""
        if kind == Kind.HELLO:
            return self.ill is Ill.SILENCE
        return self.ill is not Ill.CORRUPT or (answers and kind == Kind.RESULT)


class Relay:
    """Takes connections in place of an actor. Lives in one event loop."""

    def __init__(self, actor: Endpoint) -> None:
        self._actor = actor
        self._trouble: Trouble | None = None
        self._chance = random.Random(0)
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self.num_hit = 0  # messages that were mistreated

    async def listen(self, host: str) -> Endpoint:
        """Where to connect instead; the secret stays the actor's own."""
        self._server = await asyncio.start_server(self._serve, host, 0)
        return replace(self._actor, host=host, port=self._server.sockets[0].getsockname()[1])

    def disturb(self, trouble: Trouble | None) -> None:
        """From now on; None: nothing."""
        self._trouble = trouble
        self._chance = random.Random(trouble.seed if trouble is not None else 0)

    def close(self) -> None:
        """Take no more connections, and end those that there are."""
        if self._server is not None:
            self._server.close()
        for pump in self._pumps:
            pump.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._actor.host, self._actor.port)
        except OSError:
            writer.transport.abort()
            return
        ways = (
            asyncio.create_task(self._pump(reader, far_writer, answers=False)),
            asyncio.create_task(self._pump(far_reader, writer, answers=True)),
        )
        self._pumps.update(ways)
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
                self._pumps.discard(way)
            for end in (writer, far_writer):
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        parser = FrameParser(MAX_PAYLOAD_BYTES)
        with contextlib.suppress(OSError):  # one side has gone: so does the other
            while data := await reader.read(READ_BYTES):
                for kind, call, payload in parser.feed(data):
                    await self._pass_on(writer, kind, call, payload, answers)
                await writer.drain()

    async def _pass_on(
        self, writer: asyncio.StreamWriter, kind: int, call: int, payload: bytes, answers: bool
    ) -> None:
        """Send a message on, or do to it what is due. Raises OSError when the connection is to end."""
        trouble, chance, frame = self._trouble, self._chance, packed(kind, call, payload)
        if trouble is None or not trouble.befalls(kind, answers) or chance.random() >= trouble.share:
            writer.write(frame)
            return
        self.num_hit += 1
        match trouble.ill:
            case Ill.LOSE | Ill.SILENCE:
                return
            case Ill.DELAY:
                await asyncio.sleep(chance.uniform(0.0, trouble.delay_s))
                writer.write(frame)
            case Ill.REORDER:
                asyncio.get_running_loop().call_later(chance.uniform(0.0, TOGETHER_S), writer.write, frame)
            case Ill.DUPLICATE:
                writer.write(frame + frame)
            case Ill.CORRUPT:
                writer.write(packed(kind, call, spoilt(payload, chance)))
            case Ill.GARBAGE:
                writer.write(GARBAGE)
            case Ill.TRUNCATE:
                writer.write(frame[: len(frame) // 2])
                await writer.drain()
                raise ConnectionAbortedError


def spoilt(payload: bytes, chance: random.Random) -> bytes:
    """Other bytes in some places, or an end that is missing."""
    if chance.random() < 0.3:
        return payload[: chance.randrange(len(payload) + 1)]
    changed = bytearray(payload)
    for _ in range(chance.randrange(1, 4)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)

"""A coordinator's end of the wire: one connection per actor, shared by every sequence that holds it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
from collections.abc import Callable
from typing import Any

from actors.wire import access
from actors.wire.access import Endpoint
from actors.wire.frames import TRACED, BadFrame, FrameProtocol, Kind

logger = logging.getLogger(__name__)

CONNECT_S = 10.0
SILENCE_S = 15.0
NUM_PINGS = 3  # within that time
ANNOUNCED_AFTER_S = 0.002
# A peer whose machine vanished sends no end: the kernel asks after this silence, this often, this many times. What was
# sent and is not acknowledged counts by itself (else the kernel would send it again for a quarter of an hour).
KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3), (socket.TCP_USER_TIMEOUT, 20_000),
)


class ChannelLost(Exception):
    """The connection to an actor ended or never came about; one line."""


class OutOfReach(ChannelLost):
    """The actor was not seen to die: it stands still, or the network between it and here does."""


class CallFailed(Exception):
    """The actor could not run a call; the kind of its error."""


class CallRefused(CallFailed):
    """The actor has no room for a call now."""


class Reply(asyncio.Future[bytes]):
    """The answer to a call under way. `taps` are given it as it comes, before anybody who waits for it wakes up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.taps: list[Callable[[bytes], None]] = []

    def set_result(self, result: bytes, /) -> None:
        """The answer has come."""
        super().set_result(result)
        for tap in self.taps:
            tap(result)


class Channel(FrameProtocol):
    """Calls to one actor, any number at once; answers come in any order.

    While calls are under way the actor is asked whether it is there: one that stands still, or whose network does,
    holds its connection open all the same. A pass may take its time, for the actor's event loop is not in it.
    """

    def __init__(self, endpoint: Endpoint, silence_s: float = SILENCE_S) -> None:
        """`silence_s`: an actor that says nothing for so long while it has calls is lost."""
        super().__init__()
        self._endpoint = endpoint
        self._silence_s = silence_s
        self._heard_s = 0.0  # when the actor last said something, or the first of its calls was sent
        self._watch: asyncio.TimerHandle | None = None  # while calls are under way
        self._nonce = secrets.token_bytes(access.NONCE_BYTES)
        self._challenged = False
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._calls: dict[int, Reply] = {}
        self._next = 1
        self._lost: ChannelLost | None = None
        self.num_sequences = 0  # that hold the actor

    @classmethod
    async def connect(cls, endpoint: Endpoint, silence_s: float = SILENCE_S) -> Channel:
        """An open, mutually authenticated connection. Raises `ChannelLost`."""
        where = f"{endpoint.host}:{endpoint.port}"
        context = access.tls(ssl.Purpose.SERVER_AUTH)
        try:
            async with asyncio.timeout(min(CONNECT_S, silence_s)):
                transport, channel = await asyncio.get_running_loop().create_connection(
                    lambda: cls(endpoint, silence_s), endpoint.host, endpoint.port, ssl=context
                )
                try:
                    await asyncio.shield(channel._ready)
                except BaseException:
                    transport.abort()
                    raise
        except (OSError, TimeoutError) as error:
            raise OutOfReach(
                f"{where} does not answer ({type(error).__name__}): the ingress must reach the actors' ports"
            ) from error
        return channel

    @property
    def lost(self) -> bool:
        """Whether the connection has ended."""
        return self._lost is not None

    @property
    def _is_alone(self) -> bool:
        """Whether no other sequence has calls here that could share a step with what is sent now."""
        return self.num_sequences == 1

    def call(self, kind: Kind, payload: bytes, trace: bytes = b"") -> Reply:
        """The answer's payload. Raises `ChannelLost`, `CallFailed`, `CallRefused`. Cancelling abandons the call.

        `trace`: the span that the call is part of (`actors.spans.pack`), if its request is traced.
        """
        number, answer = self._expected()
        if answer.done():
            return answer
        if trace:
            self.send(kind | TRACED, number, trace + payload, at_once=self._is_alone)
        else:
            self.send(kind, number, payload, at_once=self._is_alone)
        return answer

    def _expected(self) -> tuple[int, Reply]:
        """The number of a new call, and its answer: the failure, where the connection has ended."""
        number, self._next = self._next, self._next + 1
        answer = Reply(self._loop)
        if self._lost is not None:
            answer.set_exception(self._lost)
            return number, answer
        self._calls[number] = answer
        if self._watch is None:
            self._heard_s = self._loop.time()
            self._look_again()
        return number, answer

    def announce(self, kind: Kind, payload: bytes, part: Reply) -> Reply:
        """As `call`, of a call whose last part is under way: it follows as soon as it is there, without anybody's help.

        Once the answer is abandoned nothing follows. If the part fails the call has to be abandoned. The call leaves
        `ANNOUNCED_AFTER_S` from now, or with its part: whoever makes that has just been called, too, and begins sooner
        when nobody else is woken up beside.
        """
        number, answer = self._expected()
        if answer.done():
            return answer
        has_left = has_followed = False

        def leave() -> None:
            nonlocal has_left
            has_left = True
            self.send(kind, number, payload)

        def follow(last: bytes) -> None:
            nonlocal has_followed
            if not answer.done():
                has_followed = True
                timer.cancel()
                if not has_left:
                    leave()
                self.send(Kind.DRAFT, number, last, at_once=self._is_alone)

        def end(answer: asyncio.Future[bytes]) -> None:
            timer.cancel()
            if not has_followed:  # abandoned, or ended with its lease: the actor need not keep what it was told
                part.taps.remove(follow)
                if has_left:
                    self.send(Kind.WITHDRAW, number)

        timer = self._loop.call_later(ANNOUNCED_AFTER_S, leave)
        part.taps.append(follow)
        answer.add_done_callback(end)
        return answer

    def _look_again(self) -> None:
        self._watch = self._loop.call_later(self._silence_s / NUM_PINGS, self._look)

    def _look(self) -> None:
        """Ask an actor that has been silent, and give one up that has been for too long."""
        self._watch = None
        self._calls = {number: answer for number, answer in self._calls.items() if not answer.done()}  # or abandoned
        if self._lost is not None or not self._calls:
            return
        silent_s = self._loop.time() - self._heard_s
        if silent_s >= self._silence_s:
            logger.warning("an actor is given up: it has said nothing for %.1f s", silent_s)
            self._fail(OutOfReach("its actor says nothing: it stands still or cannot be reached"))
            if self.transport is not None:
                self.transport.abort()
            return
        if silent_s >= self._silence_s / (NUM_PINGS + 1):
            self.send(Kind.PING, 0)
        self._look_again()

    def data_received(self, data: bytes) -> None:
        """Whatever it is, the actor lives."""
        self._heard_s = self._loop.time()
        super().data_received(data)

    def close(self) -> None:
        """End the connection; calls under way end with `ChannelLost`."""
        if self.transport is not None:
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Have the kernel watch the peer."""
        super().connection_made(transport)
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            raw.setsockopt(socket.IPPROTO_TCP, option, value)

    def connection_lost(self, error: Exception | None) -> None:
        """Whatever was asked here will not be answered."""
        super().connection_lost(error)
        self._fail(ChannelLost("its actor died or cannot be reached"))

    def on_frame(self, kind: int, call: int, payload: bytes) -> None:
        """An answer, or the actor's part of the introduction."""
        if kind == Kind.HELLO:
            self._introduce(payload)
            return
        if kind == Kind.PONG:
            return
        answer = self._calls.pop(call, None)
        if answer is None or answer.done():
            return  # abandoned
        if kind == Kind.RESULT:
            answer.set_result(payload)
        else:
            failure = CallRefused if kind == Kind.FULL else CallFailed
            answer.set_exception(failure(payload.decode(errors="replace")))

    def on_bad_frame(self, error: BadFrame) -> None:
        """Why the connection is about to end."""
        logger.error("the connection to an actor ended: %s", error)
        self._fail(ChannelLost(str(error)))

    def _introduce(self, payload: bytes) -> None:
        secret = self._endpoint.secret
        try:
            if not self._challenged:
                self._challenged = True
                answer = access.proof(secret, b"caller", access.challenge_of(payload))
                self.send(Kind.HELLO, 0, access.hello(self._nonce) + answer)
                return
            access.check_proof(secret, b"actor", self._nonce, payload)
        except access.Refused as error:
            raise BadFrame(str(error)) from error
        if not self._ready.done():
            self._ready.set_result(None)

    def _fail(self, error: ChannelLost) -> None:
        if self._lost is not None:
            return
        self._lost = error
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        calls, self._calls = self._calls, {}
        futures: list[asyncio.Future[Any]] = [self._ready, *calls.values()]
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen: perhaps nobody waits for it any more


class Channels:
    """The open channels of this process, one per actor."""

    def __init__(self, silence_s: float = SILENCE_S) -> None:
        """`silence_s`: see `Channel`."""
        self._silence_s = silence_s
        self._channels: dict[Endpoint, asyncio.Task[Channel]] = {}

    async def open(self, endpoint: Endpoint) -> Channel:
        """The channel to an actor, connected if need be. Raises `ChannelLost`."""
        task = self._channels.get(endpoint)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().lost)):
            self._forget_lost()
            task = self._channels[endpoint] = asyncio.create_task(Channel.connect(endpoint, self._silence_s))
        return await asyncio.shield(task)  # others may wait for it too

    def _forget_lost(self) -> None:
        for endpoint, task in list(self._channels.items()):
            if task.done() and (task.cancelled() or task.exception() or task.result().lost):
                del self._channels[endpoint]

"""An actor's end: takes calls off the connections, and sends each answer as soon as it is there.

A call's future is resolved in a worker's own thread (the engine's). What one step resolves leaves when the step has
ended, in one wake-up of the event loop and, per connection, in one write. So sequences that were computed together stay
together: answered one by one, they would come back one by one, and each would be a step of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import ssl
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.answer import Answer
from actors.engine.jobs import ReplicaFull
from actors.grammar.known import UnknownGrammar
from actors.messages import Draft, Enumeration, Origin, Verdict
from actors.presence import NotHeld, Presence
from actors.wire import access
from actors.wire.access import Endpoint, Refused
from actors.wire.codec import encode
from actors.wire.frames import CONTEXT_BYTES, MAX_PAYLOAD_BYTES, TRACED, BadFrame, FrameProtocol, Kind, packed
from actors.wire.hop import NoHop, SlowHop, open_hop

if TYPE_CHECKING:
    from actors.spans import ServedSpan, Spans

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
REMEMBERED_CALLS = 4096  # of a connection: a message that comes again is not another call
EARLY_PARTS = 64  # of a connection: parts kept that overtook the calls they belong to
HANDSHAKE_BYTES = 256  # larger payloads are taken from callers that have proved who they are


@dataclass(frozen=True, slots=True)
class Call:
    """A call under way; its future holds a draft, a verdict or None."""

    sequence_id: str
    future: Future[Any]
    span: ServedSpan | None = None  # of a call whose request is traced


# What a call is answered that has to be made again with all of its sequence.
_MISSING_VERDICT = Verdict(np.empty(0, np.int32), 0, 0, Origin.PLAIN, prefix_missing=True)
_MISSING: dict[Kind, Draft | Enumeration | Verdict] = {
    Kind.PROPOSE: Draft(np.empty(0, np.int32), prefix_missing=True), Kind.AHEAD: Enumeration(0, prefix_missing=True),
    Kind.VERIFY: _MISSING_VERDICT, Kind.STEP: _MISSING_VERDICT,
}


@dataclass(frozen=True, slots=True)
class Announced:
    """A call that has come without its last part, which is not there yet; `begin` makes it of that."""

    begin: Callable[[bytes], Call]
    trace: bytes = b""


Handler = Callable[[bytes], Call | Announced]  # of a payload; what it raises fails the call
Defer = Callable[[Callable[[], None]], None]  # runs an act when the worker has no step under way


class CallServer:
    """Serves `handlers` on a port of its own. Lives in the event loop that calls `listen`."""

    def __init__(
        self, handlers: Mapping[Kind, Handler], presence: Presence, defer: Defer | None = None,
        hop_s: float = 0.0, spans: Spans | None = None,
    ) -> None:
        """`defer`: None: answers have no steps, and leave in the turns of the event loop.

        `hop_s`: emulated network, what every call and every answer waits in addition. `spans`: of traced calls."""
        self.handlers = handlers
        self._hop_s = hop_s
        self._hop: NoHop | SlowHop = NoHop()
        self.presence = presence
        self._spans = spans
        self._defer = self._in_loop if defer is None else defer
        self.secret = access.new_secret()
        self._done: deque[_Done] = deque()
        self._woken = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None  # the event loop's
        self._server: asyncio.Server | None = None

    async def listen(self, host: str) -> Endpoint:
        """Take calls on a free port of `host`, an address of this node."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.current_thread()
        self._hop = open_hop(self._hop_s)
        self._server = await self._loop.create_server(
            lambda: _Caller(self), host, 0, ssl=access.tls(ssl.Purpose.CLIENT_AUTH)
        )
        return Endpoint(host, self._server.sockets[0].getsockname()[1], self.secret)

    def close(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server.close()
        if isinstance(self._hop, SlowHop):
            self._hop.close()

    def bring(self, act: Callable[[], None]) -> None:
        """Run `act`, which takes what a caller has sent, once that has come over."""
        self._hop.pass_on(act)

    def start(self, caller: _Caller, number: int, kind: Kind, payload: bytes, trace: bytes = b"") -> None:
        """Run one call. Nothing it does may end the connection of the others."""
        self._start(caller, number, kind, partial(self.handlers[kind], payload), trace)

    def complete(self, caller: _Caller, number: int, announced: Announced, part: bytes | None) -> None:
        """Run a call whose last part is there; None: it is no longer wanted."""
        if part is not None:
            self._start(caller, number, Kind.VERIFY, partial(announced.begin, part), announced.trace)

    def _start(
        self, caller: _Caller, number: int, kind: Kind, make: Callable[[], Call | Announced], trace: bytes = b""
    ) -> None:
        try:
            call = make()
            if isinstance(call, Announced):
                caller.expect(number, replace(call, trace=trace))
                return
        except (UnknownGrammar, NotHeld) as unknown:
            call = Call(unknown.sequence_id, completed(_MISSING[kind]))
        except Exception as error:  # a payload that cannot be read, a worker that refuses
            log.exception("a call could not be started")
            self._send(caller, Kind.FAILED, number, _line(error))
            return
        if trace and self._spans is not None:
            call = replace(call, span=self._spans.begin(kind, trace, call.sequence_id))
            call.future.add_done_callback(call.span.stamp)  # type: ignore[union-attr]  # it has just been set
        self.presence.begin(call.sequence_id, caller)
        if caller.gone:  # an emulated network brought the call later than the connection's end
            self.presence.left(caller)
        if call.future.done():  # it needed no step
            self._reply(caller, number, call)
        else:
            call.future.add_done_callback(lambda _: self._finished(caller, number, call))

    def _finished(self, caller: _Caller, number: int, call: Call) -> None:
        """In the thread that resolved the future; only the first of a burst wakes the event loop."""
        self._done.append((caller, number, call))
        if not self._woken:
            self._woken = True
            self._defer(self._wake)

    def _wake(self) -> None:
        """Have the event loop answer: all that a step has resolved is there.

        Answers leave from here where they can: the event loop comes to its turn only when this thread rests, and by
        then it may be in the middle of the next step.
        """
        if isinstance(self._hop, NoHop) and threading.current_thread() is not self._thread:
            done = self._take_done()
            sent = self._send_straight(done)
            self._in_loop(lambda: self._answer(done, sent))
        else:
            self._in_loop(lambda: self._answer(self._take_done()))

    def _in_loop(self, act: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended, and its connections with it
            self._loop.call_soon_threadsafe(act)

    def _take_done(self) -> list[_Done]:
        self._woken = False  # before the queue is read: what comes from here on wakes the loop again
        done: list[_Done] = []
        with contextlib.suppress(IndexError):
            while True:
                done.append(self._done.popleft())
        return done

    def _send_straight(self, done: Sequence[_Done]) -> set[int]:
        """Send the answers of `done` that are answers, and tell which have left: their places in it."""
        frames: dict[_Caller, list[tuple[int, bytes]]] = {}
        for place, (caller, number, call) in enumerate(done):
            try:
                payload = encode(answer) if (answer := call.future.result()) is not None else b""
            except Exception:  # the event loop's thread tells of it
                log.debug("a call failed, or its answer cannot be sent", exc_info=True)
                continue
            frames.setdefault(caller, []).append((place, packed(Kind.RESULT, number, payload)))
        return {
            place for caller, those in frames.items() if caller.send_straight(b"".join(frame for _, frame in those))
            for place, _ in those
        }

    def _answer(self, done: Sequence[_Done], sent: Set[int] = frozenset()) -> None:
        for place, (caller, number, call) in enumerate(done):
            if place in sent:
                self._note_end(call, call.future.result(), None)
            else:
                self._reply(caller, number, call, at_once=place == len(done) - 1)

    def _note_end(self, call: Call, answer: Any, failure: Exception | None) -> None:
        self.presence.finish(call.sequence_id)
        if call.span is not None:
            call.span.end(answer, failure)

    def _reply(self, caller: _Caller, number: int, call: Call, *, at_once: bool = False) -> None:
        answer, failure = None, None  # type: Any, Exception | None
        try:
            answer = call.future.result()
            payload = b"" if answer is None else encode(answer)
        except ReplicaFull as error:  # nothing is wrong: another replica may take the call
            failure = error
            log.info("there is no room for a call: %s", error, extra={"request_id": call.sequence_id})
            self._send(caller, Kind.FULL, number, f"{error}".encode())
        except Exception as error:  # the call's own failure goes to its caller
            failure = error
            log.error("a call failed", exc_info=error, extra={"request_id": call.sequence_id})
            self._send(caller, Kind.FAILED, number, _line(error))
        else:
            self._send(caller, Kind.RESULT, number, payload, at_once=at_once)
        self._note_end(call, answer, failure)  # after the answer has left

    def _send(self, caller: _Caller, kind: Kind, number: int, payload: bytes, *, at_once: bool = False) -> None:
        self._hop.pass_on(lambda: caller.send(kind, number, payload, at_once=at_once))


class _Caller(FrameProtocol):
    """One connection: nothing is run for it before it has proved that it knows the secret."""

    def __init__(self, server: CallServer) -> None:
        super().__init__()
        self._server = server
        self._nonce = secrets.token_bytes(access.NONCE_BYTES)
        self._known = False
        self.gone = False  # the connection has ended
        self._started: OrderedDict[int, None] = OrderedDict()  # the latest calls, by number
        self._announced: dict[int, Announced] = {}
        self._early: OrderedDict[int, bytes | None] = OrderedDict()  # parts of calls that have not come yet
        self._parser.max_payload_bytes = HANDSHAKE_BYTES
        self._patience = self._loop.call_later(HANDSHAKE_S, self._give_up)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Challenge the caller."""
        super().connection_made(transport)
        self.let_threads_write()
        self.send(Kind.HELLO, 0, access.hello(self._nonce))

    def connection_lost(self, error: Exception | None) -> None:
        """The calls under way end by themselves; their sequences soon, unless they are called for in another way."""
        super().connection_lost(error)
        self._patience.cancel()
        self.gone = True
        self._announced.clear()
        if deserted := self._server.presence.left(self):
            log.info("a coordinator's connection has ended, and %d sequences were called for over it", deserted)

    def on_frame(self, kind: int, call: int, payload: bytes) -> None:
        """Take a call or a part of one, or check the caller's proof first."""
        if not self._known:
            self._check(kind, payload)
            return
        trace = b""
        if kind & TRACED:
            if len(payload) < CONTEXT_BYTES:
                raise BadFrame("a traced call came without its trace")
            kind, trace, payload = kind & ~TRACED, payload[:CONTEXT_BYTES], payload[CONTEXT_BYTES:]
        if kind == Kind.PING:
            self.send(Kind.PONG, call)
        else:
            self._server.bring(partial(self._come, kind, call, payload, trace))

    def _come(self, kind: int, call: int, payload: bytes, trace: bytes) -> None:
        """Something has come over: what is told of calls that came is of those that have come over too."""
        if kind == Kind.DRAFT:
            self._take(call, payload)
        elif kind == Kind.WITHDRAW:
            self._take(call, None)
        elif call in self._started:
            log.warning("a call came twice")
        elif kind in self._server.handlers:
            self._started[call] = None
            if len(self._started) > REMEMBERED_CALLS:
                self._started.popitem(last=False)
            self._server.start(self, call, Kind(kind), payload, trace)
        else:
            self.send(Kind.FAILED, call, f"this actor takes no calls of kind {kind}".encode())

    def expect(self, number: int, announced: Announced) -> None:
        """A call has come whose last part follows, or has overtaken it."""
        if number in self._early:
            self._server.complete(self, number, announced, self._early.pop(number))
        elif not self.gone:
            self._announced[number] = announced

    def _take(self, number: int, part: bytes | None) -> None:
        """The last part of a call, which is there, or has been overtaken, or has failed already. None: none comes."""
        announced = self._announced.pop(number, None)
        if announced is not None:
            self._server.complete(self, number, announced, part)
        elif number not in self._started:
            self._early[number] = part
            if len(self._early) > EARLY_PARTS:
                self._early.popitem(last=False)

    def on_bad_frame(self, error: BadFrame) -> None:
        """Tell of it: somebody speaks another protocol to this port."""
        log.warning("a connection was refused: %s", error)

    def _check(self, kind: int, payload: bytes) -> None:
        secret = self._server.secret
        try:
            if kind != Kind.HELLO:
                raise Refused("a call came before the caller's proof")
            challenge = access.challenge_of(payload)
            answer = payload[len(access.hello(challenge)) :]
            access.check_proof(secret, b"caller", self._nonce, answer)
        except Refused as error:
            raise BadFrame(str(error)) from error
        self._known = True
        self._patience.cancel()
        self._parser.max_payload_bytes = MAX_PAYLOAD_BYTES
        self.send(Kind.HELLO, 0, access.proof(secret, b"actor", challenge))

    def _give_up(self) -> None:
        if self.transport is not None:
            log.warning("a connection was closed: no proof within %.0f s", HANDSHAKE_S)
            self.transport.abort()


_Done = tuple[_Caller, int, Call]  # answered, and not told yet


def completed(answer: Any) -> Future[Any]:
    """A future that holds its answer."""
    future: Answer[Any] = Answer()
    future.set_result(answer)
    return future


def node_address() -> str:
    """Address of the node that this Ray actor runs on."""
    import ray.util

    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def _line(error: Exception) -> bytes:
    """What a caller may read of a failure: its kind, for messages may quote what a user wrote."""
    return type(error).__name__.encode()

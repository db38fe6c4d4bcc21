"""A coordinator's and an actor's end of the wire over a real socket: answers, refusals, losses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from actors.engine.jobs import ReplicaFull
from actors.messages import Context, Draft, DraftShape
from actors.presence import Presence
from actors.sampling.params import SamplingParams
from actors.wire import access, codec
from actors.wire import server as server_module
from actors.wire.access import Endpoint
from actors.wire.codec import decode_draft, decode_propose, encode_propose
from actors.wire.frames import _HEADER, Kind, packed
from actors.wire.server import EARLY_PARTS, Announced, Call, CallServer, completed
from cluster.channel import CallFailed, CallRefused, Channel, ChannelLost, Channels, Reply

CONTEXT = Context("s", 0, np.arange(3, dtype=np.int32), 3, 3, SamplingParams(), 1)


class Worker:
    """Answers proposals when it is told to."""

    def __init__(self) -> None:
        self.pending: list[tuple[int, Future[Draft]]] = []
        self.presence = Presence(60)
        begin = self.presence.begin
        self.presence.begin = lambda name, caller: (self.callers.add(caller), begin(name, caller))[1]  # type: ignore
        self.server = CallServer({Kind.PROPOSE: self._propose, Kind.CLOSE: self._close}, self.presence)
        self.closed: list[str] = []
        self.callers: set[Any] = set()  # connections over which calls came

    def _propose(self, payload: bytes) -> Call:
        context, shape = decode_propose(payload)
        num_tokens = shape.num_tokens
        if num_tokens == 0:
            raise ValueError("a secret that a user wrote")
        future: Future[Draft] = Future()
        self.pending.append((num_tokens, future))
        return Call(context.sequence_id, future)

    def _close(self, payload: bytes) -> Call:
        self.closed.append(payload.decode())
        return Call(payload.decode(), completed(None))

    async def has(self, number: int) -> None:
        async with asyncio.timeout(30):
            while len(self.pending) < number:
                await asyncio.sleep(0.001)

    def answer(self, index: int) -> None:
        num_tokens, future = self.pending[index]
        future.set_result(Draft(np.full(num_tokens, index, np.int32)))


def run(body: Callable[[Worker, Endpoint], Awaitable[None]]) -> None:
    async def main() -> None:
        worker = Worker()
        endpoint = await worker.server.listen("127.0.0.1")
        try:
            async with asyncio.timeout(60):
                await body(worker, endpoint)
        finally:
            worker.server.close()

    asyncio.run(main())


def test_answers_come_as_they_are_ready_whatever_was_asked_first() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint)
        calls = [channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(k))) for k in (1, 2, 3)]
        await worker.has(3)
        worker.answer(2)
        assert decode_draft(await calls[2]).tokens.tolist() == [2, 2, 2]
        assert not calls[0].done()
        assert not calls[1].done()
        worker.answer(0)
        assert decode_draft(await calls[0]).tokens.tolist() == [0]
        assert await channel.call(Kind.CLOSE, b"s") == b""
        assert worker.closed == ["s"]

    run(body)


def test_calls_of_one_tick_travel_as_one_write_and_answers_of_one_burst_too() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint)
        assert channel.transport is not None
        writes: list[int] = []
        write = channel.transport.write
        channel.transport.write = lambda data: (writes.append(len(data)), write(data))[1]  # type: ignore
        received: list[int] = []
        receive = channel.data_received
        channel.data_received = lambda data: (received.append(len(data)), receive(data))[1]  # type: ignore
        calls = [channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(2))) for _ in range(32)]
        await worker.has(32)
        assert len(writes) == 1
        thread = Thread(target=lambda: [worker.answer(i) for i in range(32)])
        thread.start()
        thread.join()  # the event loop had no turn meanwhile
        await asyncio.gather(*calls)
        assert len(received) == 1

    run(body)


def test_answers_leave_when_the_step_that_found_them_has_ended() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        ends: list[Callable[[], None]] = []
        worker.server._defer = ends.append
        channel = await Channel.connect(endpoint)
        calls = [channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(1))) for _ in range(3)]
        await worker.has(3)
        for index in range(3):
            worker.answer(index)
        await asyncio.sleep(0.05)
        assert not any(call.done() for call in calls)
        assert await channel.call(Kind.CLOSE, b"s") == b""  # what needs no step waits for none
        (end,) = ends  # one for all of them
        end()
        await asyncio.gather(*calls)

    run(body)


def test_a_call_that_fails_names_its_kind_alone_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint)
        good = channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(1)))
        for payload in (encode_propose(CONTEXT, DraftShape(0)), b"\xc1 no message"):
            with pytest.raises(CallFailed) as failed:
                await channel.call(Kind.PROPOSE, payload)
            assert "secret" not in str(failed.value)
        with pytest.raises(CallFailed, match="no calls of kind 2"):
            await channel.call(Kind.VERIFY, b"")
        late = channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(2)))
        await worker.has(2)
        worker.pending[1][1].set_exception(RuntimeError("broken"))
        with pytest.raises(CallFailed, match="RuntimeError"):
            await late
        worker.answer(0)
        await good

    caplog.set_level(logging.CRITICAL)
    run(body)


def test_a_call_without_room_is_told_from_one_that_failed() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint)
        call = channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(1)))
        await worker.has(1)
        worker.pending[0][1].set_exception(ReplicaFull("9 calls wait already; add replicas"))
        with pytest.raises(CallRefused, match="^9 calls wait already; add replicas$"):
            await call

    run(body)


def test_an_abandoned_call_is_no_trouble() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint)
        first = channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(1)))
        await worker.has(1)
        first.cancel()
        worker.answer(0)
        second = channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(1)))
        await worker.has(2)
        worker.answer(1)
        assert decode_draft(await second).tokens.tolist() == [1]

    run(body)


def test_an_actor_that_dies_ends_every_call_and_every_later_one() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channels = Channels()
        channel = await channels.open(endpoint)
        assert await channels.open(endpoint) is channel
        calls = [channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(1))) for _ in range(3)]
        await worker.has(3)
        worker.server.close()
        assert channel.transport is not None
        channel.transport.abort()
        for call in calls:
            with pytest.raises(ChannelLost, match="died or cannot be reached"):
                await call
        with pytest.raises(ChannelLost):
            await channel.call(Kind.PROPOSE, b"")
        with pytest.raises(ChannelLost, match="does not answer"):
            await channels.open(endpoint)

    run(body)


def test_an_actor_that_stands_still_is_given_up_and_one_that_computes_is_not() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint, silence_s=0.3)
        slow = channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(1)))
        await worker.has(1)
        await asyncio.sleep(1.0)  # it answers pings
        assert not slow.done()
        worker.server._send = lambda *answer: None  # type: ignore[method-assign]  # from here on it says nothing
        standing = [caller for caller in callers if not caller.transport.is_closing()]
        for caller in standing:
            caller.data_received = lambda data: None
        with pytest.raises(ChannelLost, match="says nothing"):
            await slow
        assert channel.lost

    callers: list[Any] = []
    made = server_module._Caller.connection_made

    def remember(caller: Any, transport: Any) -> None:
        callers.append(caller)
        made(caller, transport)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module._Caller, "connection_made", remember)
        run(body)


def test_a_channel_without_calls_may_be_silent_for_ever() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint, silence_s=0.1)
        assert await channel.call(Kind.CLOSE, b"s") == b""
        await asyncio.sleep(0.4)
        assert not channel.lost
        assert await channel.call(Kind.CLOSE, b"s") == b""

    run(body)


def test_a_message_that_comes_twice_is_one_call() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint)
        call = channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(1)))
        channel.send(Kind.PROPOSE, 1, encode_propose(CONTEXT, DraftShape(1)))
        await channel.call(Kind.CLOSE, b"s")
        assert len(worker.pending) == 1
        worker.answer(0)
        await call
        channel.send(Kind.PROPOSE, 1, encode_propose(CONTEXT, DraftShape(1)))
        await channel.call(Kind.CLOSE, b"s")
        assert len(worker.pending) == 1

    run(body)


def test_kinds_of_frames_are_told_apart() -> None:
    assert len({kind.value for kind in Kind.__members__.values()}) == len(Kind.__members__)


def test_a_caller_without_the_secret_is_refused_before_anything_is_read(caplog: pytest.LogCaptureFixture) -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        with pytest.raises(ChannelLost):
            await Channel.connect(Endpoint(endpoint.host, endpoint.port, access.new_secret()))
        for first in (_HEADER.pack(3, Kind.PROPOSE, 1) + b"abc", b"GET / HTTP/1.1\r\n\r\n" * 30):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            writer.write(first)
            await reader.read()  # the challenge, then the end
            writer.close()
        assert worker.pending == []

    run(body)
    assert "does not know this actor's secret" in caplog.text
    assert "came before the caller's proof" in caplog.text


def test_a_port_that_passed_to_another_process_is_not_told_anything() -> None:
    async def main() -> None:
        told: list[bytes] = []

        async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            payload = access.hello(b"n" * access.NONCE_BYTES)
            writer.write(_HEADER.pack(len(payload), Kind.HELLO, 0) + payload)
            told.append(await reader.read(4096))
            writer.write(_HEADER.pack(32, Kind.HELLO, 0) + bytes(32))
            told.append(await reader.read(4096))
            writer.close()

        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        secret = access.new_secret()
        with pytest.raises(ChannelLost, match="does not know this actor's secret"):
            await Channel.connect(Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], secret))
        server.close()
        assert secret not in told[0]
        assert told[1:] in ([b""], [])

    asyncio.run(main())


def test_ends_of_different_versions_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = asyncio.create_task(Channel.connect(endpoint))
        await asyncio.sleep(0)
        with pytest.raises(ChannelLost, match="one version"):
            await channel

    hello = access.hello
    monkeypatch.setattr("actors.wire.server.access.hello", lambda nonce: b"outrider-0 " + codec.SCHEMA + nonce)
    run(body)
    assert access.challenge_of(hello(b"x" * access.NONCE_BYTES)) == b"x" * access.NONCE_BYTES


def test_a_secret_is_shown_in_no_log() -> None:
    endpoint = Endpoint("127.0.0.1", 1, b"very secret")
    assert "secret" not in repr(endpoint)


@pytest.fixture
def certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate for 127.0.0.1 that signs itself, as Ray's own variables name it."""
    import shutil
    import subprocess

    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=outrider",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=60,
    )
    for name, value in {
        "RAY_USE_TLS": "1", "RAY_TLS_SERVER_CERT": str(certificate), "RAY_TLS_SERVER_KEY": str(key),
        "RAY_TLS_CA_CERT": str(certificate),
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("certificates")
def test_where_ray_encrypts_so_does_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint)
        assert channel.transport is not None
        assert channel.transport.get_extra_info("cipher") is not None
        answer: Any = channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(1)))
        await worker.has(1)
        worker.answer(0)
        await answer
        monkeypatch.setenv("RAY_USE_TLS", "0")
        with pytest.raises(ChannelLost):
            await Channel.connect(endpoint)

    run(body)


def test_the_end_of_a_connection_ends_the_sequences_that_were_called_for_over_it_and_no_others() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        worker.presence._left_timeout_s = 0.05
        channels = {name: await Channel.connect(endpoint) for name in ("s", "t")}
        for name, channel in channels.items():
            worker.presence.attend(name, "lease")
            channel.call(Kind.PROPOSE, encode_propose(replace(CONTEXT, sequence_id=name), DraftShape(1)))
        await worker.has(2)
        dying, living = (asyncio.create_task(worker.presence.ended(name, "lease")) for name in ("s", "t"))
        transport = channels["s"].transport
        assert transport is not None
        transport.abort()  # as the kernel does for a process that is killed
        assert await dying is False
        await asyncio.sleep(0.1)
        assert not living.done()
        worker.answer(0)  # for nobody
        worker.answer(1)
        worker.presence.end("t")
        assert await living

    run(body)


def announced(worker: Worker) -> tuple[list[Future[Draft]], list[bytes]]:
    """Have verify calls answered that come in two parts; futures of the calls that have begun, and their parts."""
    begun: list[Future[Draft]] = []
    parts: list[bytes] = []

    def verify(payload: bytes) -> Announced:
        def begin(part: bytes) -> Call:
            begun.append(Future())
            parts.append(part)
            return Call("s", begun[-1])

        return Announced(begin)

    worker.server.handlers = {**worker.server.handlers, Kind.VERIFY: verify}
    return begun, parts


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("early", [True, False])
def test_a_call_in_two_parts_begins_when_the_second_is_there_and_nobody_has_to_bring_it(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first part leaves a little later, or with the second if that is there by then."""
    monkeypatch.setattr("cluster.channel.ANNOUNCED_AFTER_S", 0.001 if early else 3600.0)

    async def body(worker: Worker, endpoint: Endpoint) -> None:
        begun, parts = announced(worker)
        channel = await Channel.connect(endpoint)
        part = Reply(asyncio.get_running_loop())
        answer = channel.announce(Kind.VERIFY, b"first", part)
        await channel.call(Kind.CLOSE, b"s")
        (caller,) = worker.callers
        if early:
            await until(lambda: caller._announced)
        assert bool(caller._announced) == early and not begun
        part.set_result(b"second")
        await until(lambda: begun)
        assert parts == [b"second"]
        begun[0].set_result(Draft(np.array([7], np.int32)))
        assert decode_draft(await answer).tokens.tolist() == [7]

    run(body)


@pytest.mark.parametrize("how", ["part fails", "answer is abandoned", "its lease ends"])
def test_a_call_whose_second_part_will_not_come_is_forgotten_by_the_actor(how: str) -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        begun, _ = announced(worker)
        channel = await Channel.connect(endpoint)
        part = Reply(asyncio.get_running_loop())
        answer = channel.announce(Kind.VERIFY, b"first", part)
        await channel.call(Kind.CLOSE, b"s")
        (caller,) = worker.callers
        await until(lambda: caller._announced)
        if how == "part fails":
            part.set_exception(ChannelLost("the drafter died"))
            await asyncio.sleep(0)
        if how == "its lease ends":
            answer.set_exception(ChannelLost("its lease ended"))
            answer.exception()
        else:
            answer.cancel()
        await until(lambda: not caller._announced)
        if not part.done():
            part.set_result(b"too late")
        await channel.call(Kind.CLOSE, b"s")
        assert not begun

    run(body)


def test_a_call_that_is_abandoned_before_its_first_part_has_left_is_never_heard_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cluster.channel.ANNOUNCED_AFTER_S", 3600.0)

    async def body(worker: Worker, endpoint: Endpoint) -> None:
        _, parts = announced(worker)
        channel = await Channel.connect(endpoint)
        part = Reply(asyncio.get_running_loop())
        channel.announce(Kind.VERIFY, b"first", part).cancel()
        await asyncio.sleep(0)
        assert not part.taps
        part.set_result(b"too late")
        await channel.call(Kind.CLOSE, b"s")
        (caller,) = worker.callers
        assert (parts, caller._announced, len(caller._early)) == ([], {}, 0)

    run(body)


def test_a_second_part_without_a_byte_is_a_part_like_any_other() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        begun, parts = announced(worker)
        channel = await Channel.connect(endpoint)
        part = Reply(asyncio.get_running_loop())
        channel.announce(Kind.VERIFY, b"first", part)
        part.set_result(b"")  # of a drafter that is broken: the verifying actor finds that it cannot be read
        await until(lambda: begun)
        assert parts == [b""]

    run(body)


def test_parts_that_come_twice_or_before_their_call_make_one_call_each() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        begun, parts = announced(worker)
        channel = await Channel.connect(endpoint)
        channel.send(Kind.DRAFT, 5, b"early")
        channel.send(Kind.VERIFY, 5, b"first")
        channel.send(Kind.DRAFT, 5, b"again")
        channel.send(Kind.VERIFY, 5, b"first, again")
        channel.send(Kind.VERIFY, 6, b"first")
        channel.send(Kind.DRAFT, 6, b"second")
        channel.send(Kind.DRAFT, 6, b"second, again")
        for number in range(1000, 1000 + 2 * EARLY_PARTS):
            channel.send(Kind.DRAFT, number, b"of nothing")
        assert await channel.call(Kind.CLOSE, b"s") == b""
        assert parts == [b"early", b"second"]
        (caller,) = worker.callers
        assert not caller._announced
        assert len(caller._early) == EARLY_PARTS

    run(body)


def test_what_no_other_sequence_shares_a_step_with_leaves_at_once() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint)
        assert channel.transport is not None
        writes: list[bytes] = []
        channel.transport.write = writes.append  # type: ignore[method-assign]
        for num_sequences, num_writes in ((1, 1), (2, 1)):
            channel.num_sequences = num_sequences
            channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(2)))
            assert len(writes) == num_writes
        await asyncio.sleep(0)
        assert len(writes) == 2

    run(body)


def test_answers_leave_from_the_thread_that_found_them_whatever_the_event_loop_does() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        reader, _writer = await raw_connection(worker, endpoint)
        ends: list[Callable[[], None]] = []
        worker.server._defer = ends.append
        worker.server._answer = lambda done, sent: None  # type: ignore  # the event loop has no time
        thread = Thread(target=lambda: ([worker.answer(i) for i in range(3)], ends[0]()))
        thread.start()
        thread.join()
        found = [await read_frame(reader) for _ in range(3)]
        assert [number for _, number, _ in found] == [1, 2, 3]
        assert [decode_draft(payload).tokens.tolist() for _, _, payload in found] == [[0], [1], [2]]

    run(body)


def test_answers_that_a_full_connection_does_not_take_follow_whole_and_in_order() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        num_tokens, num_calls = 200_000, 40
        reader, _writer = await raw_connection(worker, endpoint, num_calls, num_tokens)
        ends: list[Callable[[], None]] = []
        worker.server._defer = ends.append
        for index in range(num_calls):
            worker.answer(index)
            if index % 3 == 0:
                await asyncio.to_thread(ends.pop())  # as steps of an engine end
        await asyncio.to_thread(lambda: [end() for end in ends])
        for index in range(num_calls):
            kind, number, payload = await read_frame(reader)
            assert (kind, number) == (Kind.RESULT, index + 1)
            assert np.array_equal(decode_draft(payload).tokens, np.full(num_tokens, index))

    run(body)


def test_nothing_is_written_straight_on_a_connection_that_has_ended() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint)
        call = channel.call(Kind.PROPOSE, encode_propose(CONTEXT, DraftShape(1)))
        await worker.has(1)
        (caller,) = worker.callers
        channel.close()
        await until(lambda: caller.gone)
        assert caller._straight is None
        assert not caller.send_straight(b"anything")
        worker.answer(0)
        with pytest.raises(ChannelLost):
            await call

    run(body)


async def raw_connection(
    worker: Worker, endpoint: Endpoint, num_calls: int = 3, num_tokens: int = 1
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A caller that reads when it likes, with calls 1, 2, ... under way."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    _, _, hello = await read_frame(reader)
    nonce = b"n" * access.NONCE_BYTES
    proof = access.proof(endpoint.secret, b"caller", access.challenge_of(hello))
    writer.write(packed(Kind.HELLO, 0, access.hello(nonce) + proof))
    await read_frame(reader)
    for number in range(1, num_calls + 1):
        writer.write(packed(Kind.PROPOSE, number, encode_propose(CONTEXT, DraftShape(num_tokens))))
    await worker.has(num_calls)
    return reader, writer  # which closes when it is forgotten


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    length, kind, number = _HEADER.unpack(await reader.readexactly(_HEADER.size))
    return kind, number, await reader.readexactly(length)

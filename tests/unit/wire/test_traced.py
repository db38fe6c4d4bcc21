"""A traced call brings the span that it is part of; all others are the bytes that they were without tracing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from actors import spans
from actors.engine.jobs import ReplicaFull
from actors.messages import Draft
from actors.presence import Presence
from actors.wire.access import Endpoint
from actors.wire.codec import decode_draft
from actors.wire.frames import _HEADER, CONTEXT_BYTES, TRACED, Kind
from actors.wire.server import Call, CallServer
from cluster.channel import CallRefused, Channel, ChannelLost


class Worker:
    """Answers when it is told to, with spans in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("caller")
        self.payloads: list[bytes] = []
        self.futures: list[Future[Any]] = []
        self.server = CallServer(
            {Kind.PROPOSE: self._propose}, Presence(60), spans=spans.Spans(provider, {"outrider.tier": "draft"})
        )

    def _propose(self, payload: bytes) -> Call:
        self.payloads.append(payload)
        self.futures.append(Future())
        return Call("s", self.futures[-1])

    async def has(self, number: int) -> None:
        async with asyncio.timeout(30):
            while len(self.futures) < number:
                await asyncio.sleep(0.001)


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


def test_the_worker_gets_the_same_payload_and_the_span_hangs_below_the_callers() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint)
        span = worker.tracer.start_span("propose")
        answer = channel.call(Kind.PROPOSE, b"payload", spans.pack(span.get_span_context()))
        plain = channel.call(Kind.PROPOSE, b"payload")
        await worker.has(2)
        thread = Thread(target=lambda: [future.set_result(Draft(np.arange(3, dtype=np.int32))) for future in
                                        worker.futures])
        thread.start()
        thread.join()
        assert decode_draft(await answer).tokens.tolist() == decode_draft(await plain).tokens.tolist() == [0, 1, 2]
        assert worker.payloads == [b"payload"] * 2
        (drawn,) = worker.exporter.get_finished_spans()
        assert drawn.name == "draft"
        assert drawn.parent is not None
        assert drawn.parent.span_id == span.get_span_context().span_id
        assert drawn.attributes is not None
        assert drawn.attributes["outrider.num_draft_tokens"] == 3
        assert drawn.attributes["outrider.request_id"] == "s"

    run(body)


def test_a_call_that_is_refused_is_drawn_as_such() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint)
        answer = channel.call(Kind.PROPOSE, b"", spans.pack(worker.tracer.start_span("x").get_span_context()))
        await worker.has(1)
        worker.futures[0].set_exception(ReplicaFull("no room"))
        with pytest.raises(CallRefused):
            await answer
        (drawn,) = worker.exporter.get_finished_spans()
        assert not drawn.status.is_ok

    run(body)


def test_a_call_without_a_trace_is_the_same_bytes_as_ever() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint)
        sent: list[bytes] = []
        assert channel.transport is not None
        channel.transport.write = sent.append  # type: ignore[method-assign]
        channel.call(Kind.PROPOSE, b"payload")
        channel.call(Kind.PROPOSE, b"payload", b"\1" * CONTEXT_BYTES)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        plain = _HEADER.pack(7, Kind.PROPOSE, 1) + b"payload"
        traced = _HEADER.pack(7 + CONTEXT_BYTES, Kind.PROPOSE | TRACED, 2) + b"\1" * CONTEXT_BYTES + b"payload"
        assert b"".join(sent) == plain + traced

    run(body)


def test_a_traced_call_without_its_trace_ends_the_connection() -> None:
    async def body(worker: Worker, endpoint: Endpoint) -> None:
        channel = await Channel.connect(endpoint)
        answer = channel.call(Kind(Kind.PROPOSE), b"")
        channel.send(Kind.PROPOSE | TRACED, 2, b"short")
        with pytest.raises(ChannelLost):
            await answer

    run(body)


def test_no_two_kinds_share_a_number_and_none_looks_traced() -> None:
    assert len({kind.value for kind in Kind.__members__.values()}) == len(Kind.__members__)
    assert not any(kind & TRACED for kind in Kind)

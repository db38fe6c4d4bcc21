"""Both clients against a scripted server behind a real gRPC port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest

from cluster.client import AsyncClient, CallFailed, Client, FinishReason, Options, Origin, Retry
from cluster.rpc import outrider_pb2 as pb
from cluster.rpc import outrider_pb2_grpc

TEXT = "Hello ✓ world"
QUICK = Retry(attempts=3, resumptions=3, first_s=0.01, longest_s=0.02)
SEEDED = Options(seed=7)


@dataclass
class Breaking(outrider_pb2_grpc.OutriderServicer):
    """Says `TEXT`, a character and token at a time; each entry of `breaks` ends one call after so many of them."""

    breaks: list[int] = field(default_factory=list)
    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    hang_after: int | None = None
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    address: str = ""

    def _finish(self) -> pb.Finish:
        return pb.Finish(
            reason=pb.FINISH_REASON_STOP_STRING, stop_string="!",
            usage=pb.Usage(prompt_tokens=3, completion_tokens=len(TEXT), cached_tokens=2),
            speculation=pb.SpeculationFigures(num_drafted=4, num_accepted=3),
        )

    def GenerateStream(
        self, request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateChunk]:
        self.requests.append(request)
        context.add_callback(self.ended.set)
        end = self.breaks.pop(0) if self.breaks else None
        for number, char in enumerate(TEXT):
            if number == end:
                context.abort(self.code, "gone")
            if number == self.hang_after:
                self.ended.wait(60)
                return
            yield pb.GenerateChunk(text=char, tokens=[pb.Token(id=number, origin=pb.ORIGIN_ACCEPTED)])
        yield pb.GenerateChunk(finish=self._finish(), request_id=request.request_id)

    def Generate(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> pb.GenerateResponse:
        self.requests.append(request)
        if self.breaks:
            self.breaks.pop()
            context.abort(self.code, "gone")
        return pb.GenerateResponse(text=TEXT, tokens=[pb.Token(id=1, logprob=-1.0, origin=pb.ORIGIN_BONUS)],
                                   finish=self._finish(), request_id=request.request_id)


@pytest.fixture
def server() -> Iterator[Breaking]:
    servicer = Breaking()
    running = grpc.server(ThreadPoolExecutor(4))
    outrider_pb2_grpc.add_OutriderServicer_to_server(servicer, running)
    servicer.address = f"127.0.0.1:{running.add_insecure_port('127.0.0.1:0')}"
    running.start()
    yield servicer
    servicer.ended.set()
    running.stop(None)


def test_a_stream_that_breaks_twice_is_whole_and_typed(server: Breaking) -> None:
    server.breaks = [0, 4, 9]
    with Client(server.address, retry=QUICK) as client, client.stream("hi", SEEDED) as stream:
        assert "".join(chunk.text for chunk in stream) == TEXT
        got = stream.result()
    assert got.token_ids == tuple(range(len(TEXT)))
    assert got.tokens[0].origin is Origin.ACCEPTED
    assert (got.finish.reason, got.finish.stop, got.finish.acceptance) == (FinishReason.STOP_STRING, "!", 0.75)
    assert (got.finish.usage.prompt_tokens, got.finish.usage.cached_tokens) == (3, 2)
    assert len(server.requests) == 4
    assert len({(each.request_id, each.sampling.seed) for each in server.requests}) == 1, "a retry keeps the seed"


@pytest.mark.asyncio
async def test_the_asynchronous_client_resumes_too(server: Breaking) -> None:
    server.breaks = [0, 4, 9]
    async with AsyncClient(server.address, retry=QUICK) as client, client.stream("hi", SEEDED) as stream:
        assert "".join([chunk.text async for chunk in stream]) == TEXT
        assert (await stream.result()).token_ids == tuple(range(len(TEXT)))
        server.breaks = [0]
        whole = await client.generate("hi")
    assert (whole.text, whole.tokens[0].logprob, whole.tokens[0].origin) == (TEXT, -1.0, Origin.BONUS)


def test_unary_calls_are_tried_again_and_failures_are_one_sentence(server: Breaking) -> None:
    with Client(server.address, retry=QUICK) as client:
        server.breaks = [0, 0]
        assert client.generate("hi").text == TEXT
        server.breaks, server.code = [0], grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(CallFailed, match="^invalid argument: gone$"):
            client.generate("hi")
        server.breaks = [2]
        with pytest.raises(CallFailed) as raised:
            client.stream("hi", SEEDED).result()
        assert raised.value.code is grpc.StatusCode.INVALID_ARGUMENT
    with Client("127.0.0.1:1", retry=QUICK) as nobody, pytest.raises(CallFailed, match="unavailable"):
        nobody.generate("hi")


def test_leaving_cancelling_and_deadlines_end_the_call_on_the_server(server: Breaking) -> None:
    server.hang_after = 3
    with Client(server.address, retry=QUICK) as client:
        with client.stream("hi") as stream:
            assert next(stream).text == "H"
        assert server.ended.wait(10)
        server.ended.clear()
        stream = client.stream("hi")
        threading.Timer(0.2, stream.cancel).start()
        assert "".join(chunk.text for chunk in stream) == TEXT[:3]
        with pytest.raises(CallFailed, match="cancelled"):
            stream.result()
        assert server.ended.wait(10)
        server.ended.clear()
        with pytest.raises(CallFailed) as raised:
            client.stream("hi", timeout_s=0.3).result()
        assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert server.ended.wait(10)


@pytest.mark.asyncio
async def test_an_asynchronous_reader_that_leaves_ends_the_call(server: Breaking) -> None:
    server.hang_after = 3
    async with AsyncClient(server.address) as client:
        async with client.stream("hi") as stream:
            assert (await anext(stream)).text == "H"
        assert server.ended.wait(10)
        with pytest.raises(CallFailed, match="closed"):
            await stream.result()

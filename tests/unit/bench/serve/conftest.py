"""A scripted service behind a real gRPC port; what it does is written in the prompt."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from cluster.rpc import outrider_pb2 as pb
from cluster.rpc import outrider_pb2_grpc


class Scripted(outrider_pb2_grpc.OutriderServicer):
    """Prompts: `fine`, `full` (refused), `broken` (internal error), `short` (ends without a finish), `slow`."""

    def __init__(self) -> None:
        self.requests: list[pb.GenerateRequest] = []
        self.cancelled = threading.Event()
        self.stop = threading.Event()
        self.running = 0
        self.most_running = 0
        self.max_prompt = 2048
        self._lock = threading.Lock()

    def GenerateStream(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        with self._lock:
            self.requests.append(request)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        context.add_callback(self.cancelled.set)
        try:
            yield from self._answer(request, context)
        finally:
            with self._lock:
                self.running -= 1

    def GetModelInfo(self, request: pb.GetModelInfoRequest, context: grpc.ServicerContext) -> pb.GetModelInfoResponse:
        return pb.GetModelInfoResponse(limits=pb.Limits(max_context_tokens=4096, max_prompt_tokens=self.max_prompt))

    def _answer(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        order = request.chat.messages[-1].content if request.HasField("chat") else "fine"
        if order == "full":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue\nis full")
        if order == "broken":
            context.abort(grpc.StatusCode.INTERNAL, "no")
        num_tokens = request.sampling.max_tokens
        for i in range(0, num_tokens, 2):
            size = min(2, num_tokens - i)
            yield pb.GenerateChunk(text="ab"[:size], tokens=[pb.Token(id=7)] * size)
            if order == "slow":
                self.stop.wait(30)
        if order == "short":
            return
        finish = pb.Finish(reason=pb.FINISH_REASON_LENGTH)
        finish.usage.prompt_tokens, finish.usage.completion_tokens, finish.usage.cached_tokens = 100, num_tokens, 90
        figures = finish.speculation
        figures.num_rounds, figures.num_drafted, figures.num_accepted = (num_tokens + 1) // 2, 4, 3
        figures.control_s, figures.control_round_p50_s, figures.model_s = 0.01, 0.002, 1.0
        figures.num_cached_prompt_tokens_by_tier[0] = 80
        yield pb.GenerateChunk(finish=finish)


@pytest.fixture
def scripted() -> Iterator[tuple[Scripted, str]]:
    """The servicer and its address."""
    servicer = Scripted()
    server = grpc.server(ThreadPoolExecutor(16))
    outrider_pb2_grpc.add_OutriderServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    servicer.stop.set()
    server.stop(None)

"""A scripted server behind a real gRPC port: the commands are tested against the wire, without models."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest

from cluster.rpc import outrider_pb2 as pb
from cluster.rpc import outrider_pb2_grpc


@dataclass
class Scripted(outrider_pb2_grpc.OutriderServicer):
    """Answers with `pieces`, or fails with `error`; keeps what it was asked."""

    pieces: list[str] = field(default_factory=lambda: ["Hel", "lo ", "✓"])
    other_pieces: list[str] | None = None  # with speculation; None: the same
    error: tuple[grpc.StatusCode, str] | None = None
    num_drafted: int = 4
    hang: bool = False
    model: str = "builtin:smollm2"
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    address: str = ""

    def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: grpc.ServicerContext
    ) -> pb.GetModelInfoResponse:
        return pb.GetModelInfoResponse(tiers=[pb.TierInfo(name="target", model=self.model)])

    def GenerateStream(
        self, request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateChunk]:
        self.requests.append(request)
        # Before the first chunk: a client may leave while the others are on their way, and a callback
        # registered after that would never be called.
        context.add_callback(self.ended.set)
        if self.error is not None:
            context.abort(*self.error)
        plain = request.speculation.HasField("enabled") and not request.speculation.enabled
        pieces = self.pieces if plain or self.other_pieces is None else self.other_pieces
        for i, piece in enumerate(pieces):
            origin = pb.ORIGIN_PLAIN if plain else pb.ORIGIN_ACCEPTED
            yield pb.GenerateChunk(text=piece, tokens=[pb.Token(id=ord(piece[0]) + i, origin=origin)])
        if self.hang:
            self.ended.wait(120)
            return
        finish = pb.Finish(reason=pb.FINISH_REASON_LENGTH)
        finish.usage.prompt_tokens, finish.usage.completion_tokens = 5, len(pieces)
        figures = finish.speculation
        figures.num_rounds, figures.mean_committed_tokens = 2, len(pieces) / 2
        if not plain:
            figures.num_drafted, figures.num_accepted = self.num_drafted, self.num_drafted // 2
        if request.speculation.lossy:
            finish.lossy_policy, figures.num_relaxed = "typical", 1
        yield pb.GenerateChunk(finish=finish, request_id="r1")


@pytest.fixture
def server() -> Iterator[Scripted]:
    servicer = Scripted()
    running = grpc.server(ThreadPoolExecutor(4))
    outrider_pb2_grpc.add_OutriderServicer_to_server(servicer, running)
    servicer.address = f"127.0.0.1:{running.add_insecure_port('127.0.0.1:0')}"
    running.start()
    yield servicer
    servicer.ended.set()
    running.stop(None)

"""A stage whose services are all one scripted server: structure is tested on it, never speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from cluster.bench.serve.service import Service
from cluster.config import Config
from cluster.rpc import outrider_pb2 as pb
from cluster.rpc import outrider_pb2_grpc
from tests.unit.bench.serve.conftest import Scripted


class Speculating(Scripted):
    """Says "ab", over and over; with `is_wrong` something else as soon as it speculates."""

    def __init__(self) -> None:
        super().__init__()
        self.is_wrong = False
        self.applications: list[str] = []

    def GenerateStream(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        self.applications.append(dict(context.invocation_metadata())["application"])
        speculates = not request.speculation.HasField("enabled") or request.speculation.enabled
        for chunk in super().GenerateStream(request, context):
            if self.is_wrong and speculates:
                chunk.text = chunk.text.upper()
            if chunk.HasField("finish") and speculates:
                chunk.finish.speculation.num_recovered = 1
                chunk.finish.speculation.num_overlapped_by_outcome["hit"] = 3
                chunk.finish.speculation.num_overlapped_by_outcome["miss"] = 1
            yield chunk


class ScriptedStage:
    """Every service is the same server."""

    def __init__(self, servicer: Speculating, address: str) -> None:
        self.servicer = servicer
        self.configs: dict[str, Config] = {}
        self._address = address

    @contextmanager
    def services(self, configs: Mapping[str, Config]) -> Iterator[Mapping[str, Service]]:
        self.configs |= configs
        yield {name: Service(self._address, config, application=name) for name, config in configs.items()}


@pytest.fixture
def stage() -> Iterator[ScriptedStage]:
    servicer = Speculating()
    server = grpc.server(ThreadPoolExecutor(16))
    outrider_pb2_grpc.add_OutriderServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield ScriptedStage(servicer, f"127.0.0.1:{port}")
    server.stop(None)

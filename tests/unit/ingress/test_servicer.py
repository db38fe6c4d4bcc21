"""Messages that cannot be read reach the application as such; all others as the generated stubs would bring them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.ingress.servicer import Unreadable, add_OutriderServicer_to_server, reader
from cluster.rpc import outrider_pb2 as pb
from cluster.rpc import outrider_pb2_grpc


class Servicer(outrider_pb2_grpc.OutriderServicer):
    """Tells what it was given."""

    def Generate(self, request: object, context: object) -> pb.GenerateResponse:
        return pb.GenerateResponse(text=type(request).__name__)

    def GenerateStream(self, request: object, context: object) -> object:
        yield pb.GenerateChunk(text=type(request).__name__)

    def GetModelInfo(self, request: object, context: object) -> pb.GetModelInfoResponse:
        return pb.GetModelInfoResponse(model=type(request).__name__)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_unreadable(data: bytes) -> None:
    assert isinstance(reader(pb.GenerateRequest)(data), pb.GenerateRequest | Unreadable)


def test_every_method_of_the_contract_is_registered_and_told_of_unreadable_messages() -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    add_OutriderServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = outrider_pb2_grpc.OutriderStub(channel)
            assert stub.Generate(pb.GenerateRequest(), timeout=20).text == "GenerateRequest"
            assert [c.text for c in stub.GenerateStream(pb.GenerateRequest(), timeout=20)] == ["GenerateRequest"]
            assert stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=20).model == "GetModelInfoRequest"
            for name in ("Generate", "GetModelInfo"):
                answer = channel.unary_unary(f"/outrider.v1.Outrider/{name}")(b"\x0a\x7f", timeout=20)
                assert b"Unreadable" in answer
            with pytest.raises(grpc.RpcError):
                channel.unary_unary("/outrider.v1.Outrider/Nope")(b"", timeout=20)
    finally:
        server.stop(None)


def test_the_registration_has_the_stubs_own_names() -> None:
    seen: dict[str, list[str]] = {}

    class Server:
        def __init__(self, key: str) -> None:
            self._key = key

        def add_generic_rpc_handlers(self, handlers: object) -> None:
            pass

        def add_registered_method_handlers(self, service: str, methods: dict[str, object]) -> None:
            seen[self._key] = [service, *sorted(methods)]

    add_OutriderServicer_to_server(Servicer(), Server("ours"))
    outrider_pb2_grpc.add_OutriderServicer_to_server(Servicer(), Server("generated"))
    assert seen["ours"] == seen["generated"]

"""The service as Serve registers it: a message that cannot be read reaches the application, which refuses it in words.

With the generated stubs gRPC itself would answer UNKNOWN, and name the classes of the parser. Serve's proxies import
this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from cluster.rpc import outrider_pb2 as pb


class Unreadable:
    """Stands where a request would."""


def add_OutriderServicer_to_server(servicer: Any, server: Any) -> None:
    """What Serve's `grpc_servicer_functions` names."""
    service = pb.DESCRIPTOR.services_by_name["Outrider"]
    handlers = {method.name: _handler(servicer, method) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
    server.add_registered_method_handlers(service.full_name, handlers)


def _handler(servicer: Any, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
    make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
    return make(
        getattr(servicer, method.name), request_deserializer=reader(GetMessageClass(method.input_type)),
        response_serializer=GetMessageClass(method.output_type).SerializeToString,
    )


def reader(kind: type[Message]) -> Callable[[bytes], Message | Unreadable]:
    """A message from bytes, or `Unreadable`."""

    def read(data: bytes) -> Message | Unreadable:
        try:
            return kind.FromString(data)
        except DecodeError:
            return Unreadable()

    return read

"""A stand-in for an OpenTelemetry collector: a real OTLP receiver over gRPC that keeps what it gets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc


@dataclass(frozen=True)
class Span:
    """What a test reads of a span."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    events: tuple[str, ...]
    failed: bool

    def overlaps(self, other: Span) -> bool:
        return self.began_ns < other.ended_ns and other.began_ns < self.ended_ns


class Collector(trace_grpc.TraceServiceServicer, metrics_grpc.MetricsServiceServicer):
    """Everything that was exported to it."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._points: dict[str, list[dict[str, Any]]] = {}  # metric -> attributes of its points, resource included
        self._lock = threading.Lock()
        self.endpoint = ""

    @property
    def spans(self) -> list[Span]:
        with self._lock:
            return list(self._spans)

    @property
    def points(self) -> dict[str, list[dict[str, Any]]]:
        with self._lock:
            return {name: list(points) for name, points in self._points.items()}

    def trace(self, trace_id: str) -> list[Span]:
        return [span for span in self.spans if span.trace_id == trace_id]

    def wait(self, found: Callable[[], bool], within_s: float) -> None:
        end = time.monotonic() + within_s
        while not found():
            assert time.monotonic() < end, f"not exported within {within_s:g} s: {[s.name for s in self.spans]}"
            time.sleep(0.1)

    def settled(self, trace_id: str, within_s: float = 30.0, quiet_s: float = 3.0) -> list[Span]:
        """The spans of a trace, once its request's is there and nothing was added for a while."""
        self.wait(lambda: any(span.name == "request" for span in self.trace(trace_id)), within_s)
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < quiet_s:
            if len(self.trace(trace_id)) != seen:
                seen, since = len(self.trace(trace_id)), time.monotonic()
            time.sleep(0.1)
        return self.trace(trace_id)

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Of both services."""
        if isinstance(request, trace_pb.ExportTraceServiceRequest):
            with self._lock:
                self._spans += [
                    _span(span, _values(group.resource.attributes))
                    for group in request.resource_spans for scope in group.scope_spans for span in scope.spans
                ]
            return trace_pb.ExportTraceServiceResponse()
        for group in request.resource_metrics:
            resource = _values(group.resource.attributes)
            for scope in group.scope_metrics:
                for metric in scope.metrics:
                    data = getattr(metric, metric.WhichOneof("data"))
                    with self._lock:
                        self._points[metric.name] = self._points.get(metric.name, []) + [
                            resource | _values(point.attributes) for point in data.data_points
                        ]
        return metrics_pb.ExportMetricsServiceResponse()


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.kind,
        span.start_time_unix_nano, span.end_time_unix_nano, _values(span.attributes), resource,
        tuple(event.name for event in span.events), span.status.code == 2,
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens on loopback."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_grpc.add_TraceServiceServicer_to_server(collector, server)
    metrics_grpc.add_MetricsServiceServicer_to_server(collector, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(grace=None)

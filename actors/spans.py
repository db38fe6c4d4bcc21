"""Spans of a process that works for somebody else's trace, and how their context crosses our own wire.

A traced call carries 24 bytes before its payload: the trace and the span that it is part of. It is traced because its
request was sampled where it came in; calls of other requests carry nothing and cost nothing.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from actors.messages import Draft, Enumeration, Verdict
from actors.watch import WatchSpec
from actors.wire.frames import Kind

if TYPE_CHECKING:  # imported late: most services are not traced
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import SpanContext

Attributes = Mapping[str, str | bool | int | float]

EXPORT_EVERY_MS = 1000  # a process that is killed loses no more than the spans of this time
EXPORT_TIMEOUT_S = 5.0
_CONTEXT = struct.Struct(">QQQ")
_NAMES = {
    Kind.PROPOSE: "draft", Kind.AHEAD: "enumerate", Kind.VERIFY: "verify", Kind.VERIFY_AHEAD: "verify_ahead",
    Kind.STEP: "step", Kind.CLOSE: "close",
}


def pack(context: SpanContext) -> bytes:
    """A span's identity, 24 bytes."""
    high, low = divmod(context.trace_id, 2**64)
    return _CONTEXT.pack(high, low, context.span_id)


def unpack(packed: bytes) -> Context:
    """What `pack` made, as the parent of spans."""
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    high, low, span_id = _CONTEXT.unpack(packed)
    parent = SpanContext(high * 2**64 + low, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(parent))


def open_provider(spec: WatchSpec, process: Mapping[str, str], sampler: Sampler | None = None) -> TracerProvider | None:
    """Where this process's spans go: a provider of our own, for Serve sets the global one. None: nowhere.

    `process` describes this one. Without `sampler` whatever belongs to a sampled request is kept.
    """
    if spec.otlp_endpoint is None:
        return None
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

    provider = TracerProvider(
        sampler=sampler or ParentBased(ALWAYS_OFF),
        resource=Resource.create({"service.name": spec.service_name, **process}),
    )
    exporter = OTLPSpanExporter(endpoint=spec.otlp_endpoint, timeout=EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=EXPORT_EVERY_MS))
    return provider


class Spans:
    """Of one process: finished spans of calls that came with a context."""

    def __init__(self, provider: TracerProvider, attributes: Attributes) -> None:
        """`attributes` of every span."""
        self._tracer = provider.get_tracer("outrider")
        self._attributes = dict(attributes)

    @classmethod
    def open(cls, spec: WatchSpec, process: Mapping[str, str], attributes: Attributes) -> Spans | None:
        """None where nothing is traced."""
        provider = open_provider(spec, process)
        return None if provider is None else cls(provider, attributes)

    def record(
        self, name: str, parent: bytes | Context, began_ns: int, ended_ns: int, attributes: Attributes,
        error: str | None = None,
    ) -> Context:
        """A span that has ended, as the parent of others. Times are of `time.time_ns`."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        remote = isinstance(parent, bytes)
        span = self._tracer.start_span(
            name, context=unpack(parent) if isinstance(parent, bytes) else parent, start_time=began_ns,
            kind=SpanKind.SERVER if remote else SpanKind.INTERNAL, attributes={**self._attributes, **attributes},
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(ended_ns)
        return set_span_in_context(span)

    def begin(self, kind: Kind, parent: bytes, sequence_id: str) -> ServedSpan:
        """A call has come in."""
        return ServedSpan(self, kind, parent, sequence_id)


class ServedSpan:
    """A traced call under way."""

    def __init__(self, spans: Spans, kind: Kind, parent: bytes, sequence_id: str) -> None:
        self._spans = spans
        self._kind = kind
        self._parent = parent
        self._sequence_id = sequence_id
        self._began_ns = self._ended_ns = time.time_ns()

    def stamp(self, future: Future[Any]) -> None:
        """The call's future is resolved: in the worker's thread, hence no more than the time is taken here."""
        self._ended_ns = time.time_ns()

    def end(self, answer: object, error: Exception | None = None) -> None:
        """The answer leaves."""
        attributes: dict[str, str | bool | int | float] = {"outrider.request_id": self._sequence_id}
        wrong = None if error is None else type(error).__name__
        if isinstance(answer, Draft):
            attributes |= _of_draft(answer)
            wrong = None if answer.error is None else "no draft"
        elif isinstance(answer, Enumeration):
            attributes |= _of_enumeration(answer)
            wrong = None if answer.error is None else "no branches"
        elif isinstance(answer, Verdict):
            attributes |= _of_verdict(answer)
            wrong = None if answer.error is None else "no verdict"
        began, ended = self._began_ns, self._ended_ns
        context = self._spans.record(_NAMES[self._kind], self._parent, began, ended, attributes, wrong)
        if isinstance(answer, Verdict) and not answer.missed and self._kind is Kind.VERIFY_AHEAD:
            # What came before was waiting for the pass before.
            verified = max(began, ended - round(answer.verify_seconds * 1e9))
            self._spans.record("verify", context, verified, ended, {"outrider.request_id": self._sequence_id})


def _of_draft(draft: Draft) -> dict[str, str | bool | int | float]:
    return {
        "outrider.num_draft_tokens": len(draft.tokens), "outrider.model_seconds": draft.model_seconds,
        "outrider.pass_rows": draft.pass_rows, "outrider.num_cached_tokens": draft.num_cached_tokens,
    }


def _of_enumeration(enumeration: Enumeration) -> dict[str, str | bool | int | float]:
    return {
        "outrider.num_branches": len(enumeration.branches),
        "outrider.num_draft_tokens": sum(len(branch.draft.tokens) for branch in enumeration.branches),
        "outrider.model_seconds": enumeration.model_seconds,
    }


def _of_verdict(verdict: Verdict) -> dict[str, str | bool | int | float]:
    return {
        "outrider.num_draft_tokens": verdict.num_draft, "outrider.num_accepted_tokens": verdict.num_accepted,
        "outrider.model_seconds": verdict.verify_model_seconds, "outrider.pass_rows": verdict.pass_rows,
        "outrider.num_cached_tokens": verdict.num_cached_tokens, "outrider.missed": verdict.missed,
    }

"""Traces of sampled requests: which ones, and the spans that the ingress draws itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from actors.spans import Attributes, open_provider, pack
from actors.watch import WatchSpec
from cluster.coordinator.figures import FigureCounter
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import SpeculationFigures
from cluster.telemetry.rounds import RoundSpans, TracedFigures

if TYPE_CHECKING:  # imported late: most services are not traced
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

CARRIED = ("traceparent", "tracestate")  # of the W3C's Trace Context, in a request's metadata or headers


class CallSpan:
    """A span of something that is waited for."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def packed(self) -> bytes:
        """What travels to whoever works for it."""
        return pack(self._span.get_span_context())

    def set(self, attributes: Attributes) -> None:
        """Say more of it."""
        self._span.set_attributes(attributes)

    def end(self, error: BaseException | None = None) -> None:
        """It is over. The kind of an error is told, never its text."""
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        self._span.end()


class RequestTrace:
    """The spans of one sampled request."""

    def __init__(self, tracer: Tracer, span: Span, tiers: tuple[str, ...], *, include_text: bool) -> None:
        """`tiers`: names of the pools that are leased."""
        from opentelemetry.trace import set_span_in_context

        self._tracer = tracer
        self._span = span
        self._context = set_span_in_context(span)
        self._tiers = tiers
        self._rounds: RoundSpans | None = None
        self.include_text = include_text

    def set(self, attributes: Attributes) -> None:
        """Say more of the request."""
        self._span.set_attributes(attributes)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """A part of the request."""
        call = CallSpan(self._tracer.start_span(name, self._context))
        try:
            yield
        except BaseException as error:
            call.end(error)
            raise
        call.end()

    def figures(self, request_id: str) -> FigureCounter:
        """What counts the request's rounds, and draws them."""
        self._rounds = RoundSpans(self._tracer, self._context)
        return TracedFigures(request_id, self._rounds)

    def ladder(self, ladder: Ladder) -> Ladder:
        """The same tiers, with spans of leases and calls; the request's rounds begin now."""
        from cluster.telemetry.traced import TracedTier

        if self._rounds is not None:
            self._rounds.begin()
        tiers = [TracedTier(tier, name, self) for tier, name in zip(ladder.tiers, self._tiers, strict=True)]  # type: ignore[arg-type]  # those of the cluster
        return replace(ladder, tiers=tiers)

    def call(self, name: str, attributes: Attributes) -> CallSpan:
        """A call of the round under way."""
        from opentelemetry.trace import SpanKind

        parent = self._context if self._rounds is None else self._rounds.parent()
        return CallSpan(self._tracer.start_span(name, parent, kind=SpanKind.CLIENT, attributes=attributes))

    def end(self, outcome: str, figures: SpeculationFigures, *, failed: bool) -> None:
        """The request is over."""
        if self._rounds is not None:
            self._rounds.close()
        self._span.set_attributes({
            "outrider.outcome": outcome, "gen_ai.response.finish_reasons": (outcome,),
            "gen_ai.usage.output_tokens": figures.committed, "outrider.rounds": figures.rounds,
            "outrider.num_draft_tokens": figures.drafted, "outrider.num_accepted_tokens": figures.accepted,
            "outrider.lease_moves": figures.lease_moves, "outrider.degraded": bool(figures.degraded),
        })
        if failed:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, outcome))
        self._span.end()


class Tracing:
    """Of one ingress replica."""

    def __init__(
        self, provider: TracerProvider, model_name: str, tiers: tuple[str, ...], *, include_text: bool
    ) -> None:
        """`tiers`: names of the pools that are leased."""
        self._tracer = provider.get_tracer("outrider")
        self._model_name = model_name
        self._tiers = tiers
        self._include_text = include_text

    @classmethod
    def open(
        cls, spec: WatchSpec, process: Mapping[str, str], model_name: str, tiers: tuple[str, ...], *,
        sample_ratio: float, include_text: bool,
    ) -> Tracing | None:
        """None where nothing is traced."""
        if spec.otlp_endpoint is None:
            return None
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        provider = open_provider(spec, process, ParentBased(TraceIdRatioBased(sample_ratio)))
        return None if provider is None else cls(provider, model_name, tiers, include_text=include_text)

    def request(self, metadata: Iterable[tuple[str, str | bytes]]) -> RequestTrace | None:
        """A request has come: its trace, or None when it is not sampled. Who calls may have decided (`traceparent`)."""
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(
            "request", _parent(metadata), kind=SpanKind.SERVER,
            attributes={"gen_ai.operation.name": "text_completion", "gen_ai.request.model": self._model_name},
        )
        if not span.is_recording():
            return None
        return RequestTrace(self._tracer, span, self._tiers, include_text=self._include_text)


def _parent(metadata: Iterable[tuple[str, str | bytes]]) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {name: value for name, value in metadata if name in CARRIED and isinstance(value, str)}
    return TraceContextTextMapPropagator().extract(carrier, Context())

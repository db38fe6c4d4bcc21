"""The rounds of a sampled request as spans, one after another without a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.messages import Verdict
from cluster.coordinator.figures import FigureCounter
from cluster.coordinator.request import AheadOutcome, TokenEvent

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer


class RoundSpans:
    """A round begins where the one before it was committed. The first one computes the prompt: `prefill`."""

    def __init__(self, tracer: Tracer, request: Context) -> None:
        self._tracer = tracer
        self._request = request
        self._span: Span | None = None
        self._context = request
        self._has_calls = False

    def begin(self, name: str = "prefill") -> None:
        """A round begins."""
        from opentelemetry.trace import set_span_in_context

        self._span = self._tracer.start_span(name, self._request)
        self._context = set_span_in_context(self._span)
        self._has_calls = False

    def parent(self) -> Context:
        """Of a call that is made now."""
        self._has_calls = True
        return self._context

    def committed(self, number: int, verdict: Verdict, event: TokenEvent) -> None:
        """A round has ended, and the next one begins."""
        if self._span is None:
            return
        self._span.set_attributes({
            "outrider.round": number, "outrider.num_draft_tokens": verdict.num_draft,
            "outrider.num_accepted_tokens": verdict.num_accepted, "outrider.num_committed_tokens": len(event.token_ids),
            "outrider.last": verdict.last.value, "outrider.draft_seconds": verdict.draft_seconds,
            "outrider.verify_seconds": verdict.verify_seconds,
        })
        self._span.end()
        self.begin("round")

    def ahead(self, outcome: AheadOutcome) -> None:
        """What became of drafting ahead in this round."""
        if self._span is not None:
            self._span.set_attribute("outrider.ahead", outcome.value)

    def degraded(self, tier: int, reason: str) -> None:
        """A tier did not serve."""
        if self._span is not None:
            self._span.add_event("degraded", {"outrider.tier_index": tier, "outrider.reason": reason})

    def close(self) -> None:
        """No round follows. One that has begun is drawn only where calls were made for it: they need their parent."""
        span, self._span = self._span, None
        self._context = self._request
        if span is not None and self._has_calls:
            span.set_attribute("outrider.abandoned", True)
            span.end()


class TracedFigures(FigureCounter):
    """Counts as any other does, and draws the rounds."""

    def __init__(self, request_id: str, rounds: RoundSpans) -> None:
        super().__init__(request_id)
        self._spans = rounds
        self._number = 0

    def end_round(self, verdict: Verdict, event: TokenEvent) -> None:
        """A round was committed."""
        self._number += 1
        self._spans.committed(self._number, verdict, event)

    def count_ahead(self, outcome: AheadOutcome) -> None:
        """What became of an enumeration."""
        super().count_ahead(outcome)
        self._spans.ahead(outcome)

    def degrade(self, tier: int, reason: str, replica_id: str | None = None, detail: str | None = None) -> None:
        """A tier did not serve."""
        super().degrade(tier, reason, replica_id, detail)
        self._spans.degraded(tier, reason)

"""Spans of a request: who decides whether there are any, how they hang together, and what is never in them."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from actors import spans
from actors.messages import Draft, Origin, Verdict
from actors.wire.frames import CONTEXT_BYTES, Kind
from cluster.coordinator.errors import FailureCode, GenerationFailed
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import AheadOutcome, Finish
from cluster.coordinator.rounds import cut
from cluster.telemetry.tracing import RequestTrace, Tracing
from tests.unit.coordinator.fakes import FAST, alone, make_request, make_tiers
from tests.unit.telemetry.carrying import CarryingTier

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Traced:
    """Tracing into memory."""

    def __init__(self, ratio: float = 1.0) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(ratio)))
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(self.provider, "x", ("draft", "target"), include_text=False)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def request(self, traceparent: str | None = None) -> RequestTrace | None:
        return self.tracing.request([] if traceparent is None else [("traceparent", traceparent)])

    def check_links(self) -> None:
        """Every parent of this process was exported."""
        finished = self.exporter.get_finished_spans()
        ids = {span.context.span_id for span in finished if span.context is not None}
        for span in finished:
            assert span.parent is None or span.parent.is_remote or span.parent.span_id in ids, span.name


def verdict(num_accepted: int = 1) -> Verdict:
    return Verdict(np.arange(num_accepted + 1, dtype=np.int32), num_accepted, 2, Origin.RECOVERED, tier=1)


@pytest.mark.parametrize(("ratio", "flag", "is_traced"), [(0.0, "01", True), (1.0, "00", False)])
def test_who_calls_decides_for_its_own_request(ratio: float, flag: str, is_traced: bool) -> None:
    traced = Traced(ratio)
    request = traced.request(f"00-{TRACE_ID}-{SPAN_ID}-{flag}")
    assert (request is not None) == is_traced
    if request is not None:
        request.end("length", request.figures("a").snapshot(), failed=False)
        (span,) = traced.named("request")
        assert span.parent is not None
        assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE_ID, SPAN_ID)


@pytest.mark.parametrize("nonsense", ["", "00-zz-zz-01", f"00-{'0' * 32}-{SPAN_ID}-01", "x" * 4000])
def test_a_traceparent_that_is_none_counts_as_none(nonsense: str) -> None:
    assert Traced(0.0).request(nonsense) is None
    assert Traced(1.0).request(nonsense) is not None


def test_a_context_crosses_the_wire_in_24_bytes() -> None:
    traced = Traced()
    request = traced.request()
    assert request is not None
    call = request.call("verify", {})
    assert len(call.packed) == CONTEXT_BYTES
    served = spans.Spans(traced.provider, {"outrider.tier": "target"}).begin(Kind.VERIFY_AHEAD, call.packed, "a")
    served.stamp(None)  # type: ignore[arg-type]
    served.end(verdict())
    call.end()
    (client,) = [span for span in traced.named("verify") if span.parent is not None and not span.parent.is_remote
                 and "outrider.tier" not in (span.attributes or {})]
    (server,) = traced.named("verify_ahead")
    assert server.parent is not None
    assert client.context is not None
    assert (server.parent.trace_id, server.parent.span_id) == (client.context.trace_id, client.context.span_id)
    own_pass = [span for span in traced.named("verify") if span is not client]
    assert [span.parent.span_id for span in own_pass] == [server.context.span_id]  # type: ignore[union-attr]


def test_a_draft_that_failed_is_marked_and_its_error_is_not_told() -> None:
    traced = Traced()
    request = traced.request()
    assert request is not None
    served = spans.Spans(traced.provider, {}).begin(Kind.PROPOSE, request.call("propose", {}).packed, "a")
    served.end(Draft(np.empty(0, np.int32), error="ValueError: what a user wrote"))
    (span,) = traced.named("draft")
    assert not span.status.is_ok
    assert "wrote" not in span.to_json()


def test_rounds_follow_one_another_and_calls_belong_to_the_one_under_way() -> None:
    traced = Traced()
    request = traced.request()
    assert request is not None
    figures = request.figures("a")
    request._rounds.begin()  # type: ignore[union-attr]
    for number in range(3):
        request.call("verify", {}).end()
        if number == 1:
            figures.count_ahead(AheadOutcome.HIT)
            figures.degrade(0, "late")
        found = verdict()
        figures.end_round(found, cut(found, 9, frozenset()))
    request.end("length", figures.snapshot(), failed=False)
    rounds = [*traced.named("prefill"), *traced.named("round")]
    assert [span.attributes["outrider.round"] for span in rounds] == [1, 2, 3]  # type: ignore[index]
    assert [span.parent.span_id for span in traced.named("verify")] == [  # type: ignore[union-attr]
        span.context.span_id for span in rounds  # type: ignore[union-attr]
    ]
    assert rounds[1].attributes["outrider.ahead"] == "hit"  # type: ignore[index]
    assert [event.name for event in rounds[1].events] == ["degraded"]
    traced.check_links()


def test_a_round_that_was_given_up_is_drawn_where_calls_were_made_for_it() -> None:
    traced = Traced()
    request = traced.request()
    assert request is not None
    figures = request.figures("a")
    request._rounds.begin()  # type: ignore[union-attr]
    call = request.call("verify", {})
    request.end("cancelled", figures.snapshot(), failed=False)
    call.end(asyncio.CancelledError())
    (span,) = traced.named("prefill")
    assert span.attributes is not None
    assert span.attributes["outrider.abandoned"]
    traced.check_links()


def test_a_failure_is_told_by_its_kind_alone() -> None:
    traced = Traced()
    request = traced.request()
    assert request is not None
    request.call("verify", {}).end(GenerationFailed("a secret", FailureCode.INTERNAL))
    request.end("internal", request.figures("a").snapshot(), failed=True)
    for span in traced.exporter.get_finished_spans():
        assert not span.status.is_ok
        assert "secret" not in span.to_json()


def climbed(traced: Traced) -> list[Any]:
    """What a traced request of 40 tokens yields."""

    async def main() -> list[Any]:
        request = traced.request()
        assert request is not None
        figures = request.figures("a")
        carried: list[tuple[str, bytes]] = []
        tiers = [CarryingTier(tier, carried) for tier in make_tiers(70)]
        ladder = request.ladder(Ladder(tiers=tiers, settings=FAST))  # type: ignore[arg-type]
        events = [event async for event in generate(make_request(40, lookahead=3), ladder, figures=figures)]
        request.end("length", figures.snapshot(), failed=False)
        assert {name for name, _ in carried} >= {"lease", "propose", "verify"}
        assert {len(trace) for _, trace in carried} == {CONTEXT_BYTES}
        traced.check_links()
        return events

    return asyncio.run(main())


def test_a_traced_ladder_gives_the_text_of_the_plain_one() -> None:
    *events, finish = climbed(Traced())
    assert isinstance(finish, Finish)
    assert [int(token) for event in events for token in event.token_ids] == alone(40)


def test_a_round_that_begins_before_the_last_one_is_handed_out_has_its_own_calls() -> None:
    traced = Traced()
    *events, _ = climbed(traced)
    rounds = [*traced.named("prefill"), *traced.named("round")]
    assert len(rounds) == len(events)
    for name in ("propose", "verify"):
        parents = [span.parent.span_id for span in traced.named(name)]  # type: ignore[union-attr]
        assert parents == [span.context.span_id for span in rounds][: len(parents)]  # type: ignore[union-attr]

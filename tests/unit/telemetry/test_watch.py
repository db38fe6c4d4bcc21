"""What the ingress counts of a request however it ends, and whom it asks when it is asked itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ray.exceptions import RayActorError

from actors.sampling.params import SamplingParams
from cluster.config import load_config
from cluster.ingress.admission import Admission
from cluster.ingress.checks import InvalidRequest
from cluster.ingress.convert import IngressRequest
from cluster.ingress.errors import QueueFull
from cluster.routing import Candidate, Preference, rank
from cluster.rpc import outrider_pb2 as pb
from cluster.telemetry import metrics as m
from cluster.telemetry.metrics import Report, Sample
from cluster.telemetry.scrape import pool_reports
from cluster.telemetry.tracing import Tracing
from cluster.telemetry.watch import IngressWatch

CONFIG = load_config({"tiers": [{"name": "draft", "model": "x"}, {"name": "target", "model": "x"}]}, environ={})
CHECKED = IngressRequest(
    prompt_ids=np.arange(5, dtype=np.int32), sampling=SamplingParams(), max_tokens=4, stop_strings=(),
    stop_ids=frozenset(), include_stop=False, lookahead=None, speculation_off=False, request_id="a", sequence_id="a-1",
)


@dataclass
class Pool:
    """A pool's handle, whose router is the real rule."""

    tags: list[str]
    lost: frozenset[str] = frozenset()
    asked: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> Any:
        return self

    async def remote(self, preference: Preference) -> tuple[str, Report]:
        tag = rank([Candidate(tag, 0) for tag in self.tags], preference, 8)[0][0]
        self.asked.append(tag)
        if tag in self.lost:
            raise RayActorError
        return tag, Report((("tier", "draft"), ("replica", tag)), (Sample(m.KV_USAGE, 0.5),))


class Board:
    """Of several ingress replicas."""

    def __init__(self, reports: list[Report]) -> None:
        self.reports = self
        self._reports = reports

    async def remote(self) -> list[Report]:
        return self._reports


def watch(pools: tuple[Any, Any] = (Pool([]), Pool([])), board: Any = None) -> IngressWatch:
    return IngressWatch(CONFIG, "i0", Admission(2, 2, 1.0), pools, board)


def outcomes(watch: IngressWatch) -> dict[str, float]:
    return {s.labels[0]: s.value for s in watch.report().samples if s.metric is m.REQUESTS}  # type: ignore[misc]


def finish(reason: int) -> pb.GenerateChunk:
    return pb.GenerateChunk(finish=pb.Finish(reason=reason))  # type: ignore[arg-type]


def test_a_request_is_counted_once_by_how_it_ended() -> None:
    watched = watch()
    with watched.request(()) as one:
        one.taken(CHECKED, pb.GenerateRequest(text="x"))
        one.shown(finish(pb.FINISH_REASON_STOP_STRING))
    for error in (InvalidRequest("no"), QueueFull(3), RuntimeError("a bug")):
        with pytest.raises(type(error)), watched.request(()):
            raise error
    with pytest.raises(asyncio.CancelledError), watched.request(()):
        raise asyncio.CancelledError
    with suppress(GeneratorExit), watched.request(()) as two:  # a reader who leaves after the end has had it
        two.shown(finish(pb.FINISH_REASON_LENGTH))
        raise GeneratorExit
    assert outcomes(watched) == {
        "stop_string": 1, "invalid_argument": 1, "resource_exhausted": 1, "internal": 1, "cancelled": 1, "length": 1,
    }


def test_a_caller_who_is_turned_away_is_counted_and_others_pass() -> None:
    @contextmanager
    def guard(is_known: bool) -> Iterator[str]:
        if not is_known:
            raise InvalidRequest("who are you")
        yield "somebody"

    watched = watch()
    with pytest.raises(InvalidRequest), watched.guarded(guard(False)):
        pytest.fail("turned away")
    with suppress(KeyError), watched.guarded(guard(True)) as caller:
        assert caller == "somebody"
        raise KeyError  # not of the guard
    assert outcomes(watched) == {"invalid_argument": 1}


@pytest.mark.parametrize("include_text", [False, True])
def test_traces_hold_text_only_where_that_was_asked_for(include_text: bool) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    watched = watch()
    watched._tracing = Tracing(provider, "x", ("draft", "target"), include_text=include_text)
    request = pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="a quagga?")]))
    with watched.request(()) as one:
        one.taken(CHECKED, request)
        one.shown(pb.GenerateChunk(text="an okapi"))
        one.shown(finish(pb.FINISH_REASON_LENGTH))
    (span,) = exporter.get_finished_spans()
    assert ("quagga" in span.to_json()) == ("okapi" in span.to_json()) == include_text


def test_each_replica_of_a_pool_is_asked_once() -> None:
    pool: Any = Pool(["a", "b", "c"])
    reports = asyncio.run(pool_reports(pool))
    assert sorted(dict(each.source)["replica"] for each in reports) == ["a", "b", "c"]
    assert len(pool.asked) == 4


def test_a_replica_that_is_lost_costs_the_others_nothing_that_was_told() -> None:
    pool: Any = Pool(["a", "b"], lost=frozenset("b"))
    assert len(asyncio.run(pool_reports(pool))) <= 1


def test_any_ingress_replica_answers_for_all() -> None:
    other = Report((("model_name", "outrider"), ("replica", "i1")), (Sample(m.RUNNING, 7),))
    own_of_before = Report((("model_name", "outrider"), ("replica", "i0")), (Sample(m.RUNNING, 9),))
    pools = (Pool(["a"]), Pool(["b"]))
    page = asyncio.run(watch(pools, Board([other, own_of_before])).exposition()).decode()
    assert 'outrider_num_requests_running{model_name="outrider",replica="i1"} 7.0' in page
    assert 'outrider_num_requests_running{model_name="outrider",replica="i0"} 0.0' in page  # now, not before
    assert page.count("outrider_kv_cache_usage_ratio{") == 2

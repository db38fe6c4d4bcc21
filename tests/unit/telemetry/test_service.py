"""What is counted is what the requests' own figures say, under way and afterwards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from actors.messages import Origin, ReplicaStats, Verdict
from cluster.coordinator.figures import FigureCounter
from cluster.coordinator.request import AheadOutcome
from cluster.coordinator.rounds import cut
from cluster.telemetry import metrics as m
from cluster.telemetry.histogram import Histogram
from cluster.telemetry.metrics import Distribution, Metric, Sample
from cluster.telemetry.replica import replica_samples
from cluster.telemetry.service import ServiceMetrics


@dataclass
class ManualClock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def verdict(num_accepted: int, num_draft: int) -> Verdict:
    last = Origin.PLAIN if num_draft == 0 else Origin.BONUS if num_accepted == num_draft else Origin.RECOVERED
    return Verdict(
        np.arange(num_accepted + 1, dtype=np.int32), num_accepted, num_draft, last, tier=1,
        draft_tiers=(0,) * num_draft, draft_seconds=0.01, verify_seconds=0.03,
    )


def count(figures: FigureCounter, num_accepted: int, num_draft: int) -> None:
    found = verdict(num_accepted, num_draft)
    figures.count_round(found, cut(found, 100, frozenset()), wall_s=0.05)


def value(samples: tuple[Sample, ...], metric: Metric, *labels: str) -> float | Distribution | None:
    found = [sample.value for sample in samples if sample.metric is metric and sample.labels == labels]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def service(clock: ManualClock) -> ServiceMetrics:
    return ServiceMetrics(["draft", "target"], ["draft", "target"], clock)


def test_sums_grow_while_a_request_runs_and_stay_when_it_has_ended(service: ServiceMetrics) -> None:
    meter, figures = service.request(), FigureCounter("a")
    meter.taken(figures, num_prompt_tokens=10)
    count(figures, 3, 4)
    under_way = service.samples()
    assert value(under_way, m.DRAFT_TOKENS) == 4
    assert value(under_way, m.ACCEPTED_TOKENS) == 3
    count(figures, 4, 4)
    count(figures, 0, 0)
    figures.note_cached(1, 8)
    figures.count_ahead(AheadOutcome.HIT)
    figures.degrade(0, "late")
    figures.lease_moves += 1
    meter.ended("length")
    for _ in range(2):  # asking changes nothing
        ended = service.samples()
        assert value(ended, m.ROUNDS) == 3
        assert value(ended, m.DRAFTS) == 2
        assert value(ended, m.DRAFT_TOKENS) == 8
        assert value(ended, m.ACCEPTED_TOKENS) == 7
        assert value(ended, m.ROLLED_BACK) == 1
        assert value(ended, m.RECOVERED) == value(ended, m.BONUS) == 1
        assert value(ended, m.GENERATION_TOKENS) == 10
        assert [value(ended, m.ACCEPTED_AT, str(i)) for i in range(4)] == [2, 2, 2, 1]
        assert [value(ended, m.DRAFTED_AT, str(i)) for i in range(4)] == [2, 2, 2, 2]
        assert value(ended, m.ACCEPTED_OF, "draft") == 7
        assert value(ended, m.PROMPT_TOKENS) == 10
        assert value(ended, m.CACHE_QUERIES, "target") == 10
        assert value(ended, m.CACHE_HITS, "target") == 8
        assert value(ended, m.OVERLAPS, "hit") == 1
        assert value(ended, m.DEGRADED, "draft", "late") == value(ended, m.DEGRADED_REQUESTS) == 1
        assert value(ended, m.LEASE_MOVES) == 1
        assert value(ended, m.REQUESTS, "length") == 1
        assert value(ended, m.ROUND_SECONDS, "draft") == pytest.approx(0.03)
        assert value(ended, m.ROUND_SECONDS, "wait") == pytest.approx(0.03)


def test_latencies_count_from_the_arrival_and_tokens_of_a_round_share_its_time(
    service: ServiceMetrics, clock: ManualClock
) -> None:
    meter = service.request()
    clock.now_s = 0.2
    meter.admitted()
    clock.now_s = 0.5
    meter.tokens(3)
    clock.now_s = 0.9
    meter.tokens(4)
    clock.now_s = 1.0
    meter.ended("length")
    assert service.queue_time.snapshot().total == pytest.approx(0.2)
    assert service.ttft.snapshot().total == pytest.approx(0.5)
    between = service.inter_token.snapshot()
    assert (sum(between.counts), between.total) == (4, pytest.approx(0.4))
    assert service.e2e_latency.snapshot().total == pytest.approx(1.0)


def test_a_request_that_was_refused_is_counted_without_figures(service: ServiceMetrics) -> None:
    service.request().ended("invalid_argument")
    assert value(service.samples(), m.REQUESTS, "invalid_argument") == 1
    assert value(service.samples(), m.ROUNDS) == 0


def test_shares_are_of_the_last_minute_and_absent_where_nothing_happened(
    service: ServiceMetrics, clock: ManualClock
) -> None:
    assert value(service.samples(), m.ACCEPTANCE_RATE) is None
    figures = FigureCounter("a")
    service.request().taken(figures, 1)
    count(figures, 1, 4)
    clock.now_s = 10.0
    first = service.samples()
    assert value(first, m.ACCEPTANCE_RATE) == 0.25
    assert value(first, m.ACCEPTANCE_LENGTH) == 2
    assert value(first, m.DRAFT_LENGTH) == 4
    assert value(first, m.DRAFT_OVERHEAD) == pytest.approx(0.2)
    assert value(first, m.TOKENS_PER_S) == pytest.approx(0.2)
    for clock.now_s in (40.0, 70.0, 80.0):
        service.samples()
    count(figures, 4, 4)
    clock.now_s = 100.0
    assert value(service.samples(), m.ACCEPTANCE_RATE) == 1.0  # the bad round is older than a minute
    clock.now_s = 300.0
    service.samples()
    clock.now_s = 361.0
    assert value(service.samples(), m.ACCEPTANCE_RATE) is None


def test_values_fall_into_the_bucket_whose_bound_they_do_not_exceed() -> None:
    histogram = Histogram((1.0, 2.0))
    for each in (0.5, 1.0, 1.5, 9.0):
        histogram.add(each)
    found = histogram.snapshot()
    assert found.counts == (2, 1, 1)
    assert found.cumulative == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert found.total == 12.0


def test_a_replica_tells_its_memory_and_its_queue_and_a_drafter_without_pages_does_not() -> None:
    stats = ReplicaStats(3, 6, 2, 8, 10, 40, {"num_waiting_calls": 5.0, "num_preemptions": 1.0, "unheard_of": 1.0})
    samples = replica_samples(stats, num_leases=4, max_leases=64)
    assert value(samples, m.KV_USAGE) == 0.25
    assert value(samples, m.KV_CACHED) == 0.25
    assert value(samples, m.QUEUE_DEPTH) == 5
    assert value(samples, m.LEASES) == 4
    bare = replica_samples(ReplicaStats(3, 0, 0, 0, 10, 40), num_leases=0, max_leases=64)
    assert value(bare, m.KV_USAGE) is None

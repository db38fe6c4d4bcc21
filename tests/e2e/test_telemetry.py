"""What a service shows of itself: a trace across all of its processes, metrics in three places, logs; and no text."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.cli import client
from cluster.cli.client import Options
from tests.collector import Collector, Span, collecting
from tests.e2e.service import Once, Service, served
from tests.promql import Use, rules_and_panels

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PROMPT = "zebra quagga okapi zebra quagga okapi zebra quagga"  # words that no log says by itself
PATIENCE_S = 120.0
TARGET_PASS_S = 0.03
INTERVAL_S = 0.4


@dataclass(frozen=True)
class Watched:
    """The service, and where it exports to."""

    service: Service
    collector: Collector

    def ask(self, traceparent: str | None = None, max_tokens: int = 48, on_chunk: Any = lambda chunk: None) -> Any:
        """(request id, finish) of a request that overlaps."""
        request = client.request(PROMPT, Options(temperature=0.0, max_tokens=max_tokens, lookahead_tokens=4))
        metadata = [] if traceparent is None else [("traceparent", traceparent)]
        finish, request_id = None, ""
        for chunk in self.service.stub.GenerateStream(request, timeout=PATIENCE_S, metadata=metadata):
            on_chunk(chunk)
            request_id = chunk.request_id
            if chunk.HasField("finish"):
                finish = chunk.finish
        assert finish is not None
        return request_id, finish

    def page(self) -> str:
        """Of whichever ingress replica is asked, once it knows what the other one counts."""
        time.sleep(3 * INTERVAL_S)
        with urllib.request.urlopen(f"{self.service.http}/metrics", timeout=20) as response:
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
            return str(response.read().decode())


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    small = {"model": "builtin:smollm2", "kv_tokens": 4096, "page_tokens": 16, "resources": {"num_cpus": 0.1}}
    with collecting() as collector:
        settings: dict[str, object] = {
            "model_name": "watched",
            "tiers": [
                {"name": "draft", "emulation": {"pass_s": 0.002, "agreement": 0.8, "further_guesses": 0.5}, **small},
                {"name": "target", "emulation": {"pass_s": TARGET_PASS_S}, **small},
            ],
            "speculation": {"lookahead": 4, "overlap": {"branches": 8, "guesses": 2, "tokens": 4}},
            "limits": {"max_prompt_tokens": 256, "max_tokens": 256},
            "telemetry": {"otlp_endpoint": collector.endpoint, "sample_ratio": 0.0, "interval_s": INTERVAL_S},
            "server": {"num_replicas": 2},
            "logging": {"format": "json"},
        }
        with served(settings) as service:
            yield Watched(service, collector)


def named(spans: list[Span], name: str, component: str) -> list[Span]:
    return [span for span in spans if span.name == name and span.resource["outrider.component"] == component]


def test_one_overlapped_request_is_one_trace_across_all_processes(watched: Watched) -> None:
    trace_id, caller = secrets.token_hex(16), secrets.token_hex(8)
    _, finish = watched.ask(f"00-{trace_id}-{caller}-01")
    spans = watched.collector.settled(trace_id)
    by_id = {span.span_id: span for span in spans}
    (request,) = named(spans, "request", "ingress")
    assert request.parent_id == caller
    assert all(span.parent_id in by_id for span in spans if span is not request)  # no link is broken
    parents = {span.span_id: by_id.get(span.parent_id) for span in spans}

    rounds = sorted(named(spans, "prefill", "ingress") + named(spans, "round", "ingress"), key=lambda s: s.began_ns)
    assert [span.name for span in rounds][0] == "prefill"
    committed = [span for span in rounds if "outrider.abandoned" not in span.attributes]
    assert len(committed) == finish.speculation.num_rounds == request.attributes["outrider.rounds"]
    assert sum(span.attributes["outrider.num_committed_tokens"] for span in committed) == finish.usage.completion_tokens
    assert {span.parent_id for span in [*rounds, *named(spans, "queue", "ingress")]} == {request.span_id}

    # Every process worked for it, each call below the one that the ingress made.
    for served_as, asked_as, component in (
        ("draft", "propose", "draft"), ("enumerate", "enumerate", "draft"), ("verify", "verify", "rank"),
        ("verify_ahead", "verify_ahead", "rank"), ("grant", "lease", "pool"),
    ):
        found = named(spans, served_as, component)
        assert found, served_as
        for span in found:
            call = parents[span.span_id]
            assert call is not None
            if served_as == "verify" and call.name == "verify_ahead":
                continue  # the pass that the target began by itself
            assert call.name == asked_as
            assert call.resource["outrider.component"] == "ingress"
            assert call.began_ns <= span.began_ns < span.ended_ns

    # The draft pool works while the target does.
    passes = named(spans, "verify", "rank")
    assert any(ahead.overlaps(one) for ahead in named(spans, "enumerate", "draft") for one in passes)
    assert any(parents[span.span_id].name == "verify_ahead" for span in passes)  # type: ignore[union-attr]
    assert {"hit"} <= {span.attributes.get("outrider.ahead") for span in rounds}
    assert all(span.ended_ns - span.began_ns >= 0.9e9 * TARGET_PASS_S for span in passes)
    assert "zebra" not in repr(spans)


def test_who_calls_decides_and_else_nothing_is_traced_at_ratio_0(watched: Watched) -> None:
    before, unwanted = len(watched.collector.spans), secrets.token_hex(16)
    watched.ask(f"00-{unwanted}-{secrets.token_hex(8)}-00", max_tokens=8)
    watched.ask(max_tokens=8)
    time.sleep(2.5)  # exported every second
    assert len(watched.collector.spans) == before


def test_what_is_scraped_is_what_responses_say(watched: Watched) -> None:
    before = values(watched.page())
    finishes = [watched.ask()[1] for _ in range(2)]
    after = values(watched.page())

    def grown(name: str, **labels: str) -> float:
        return total(after, name, **labels) - total(before, name, **labels)

    figures = [finish.speculation for finish in finishes]
    prefix = "outrider_spec_decode_num_"
    assert grown(f"{prefix}rounds_total") == sum(each.num_rounds for each in figures)
    assert grown(f"{prefix}draft_tokens_total") == sum(each.num_drafted for each in figures) > 0
    assert grown(f"{prefix}accepted_tokens_total") == sum(each.num_accepted for each in figures) > 0
    assert grown(f"{prefix}accepted_tokens_per_pos_total") == grown(f"{prefix}accepted_tokens_total")
    assert grown(f"{prefix}accepted_tokens_per_tier_total", tier="draft") == grown(f"{prefix}accepted_tokens_total")
    assert grown(f"{prefix}rolled_back_tokens_total") == sum(f.num_drafted - f.num_accepted for f in figures)
    for outcome in ("hit", "miss", "late"):
        expected = sum(each.num_overlapped_by_outcome.get(outcome, 0) for each in figures)
        assert grown("outrider_spec_decode_overlaps_total", outcome=outcome) == expected
    assert grown("outrider_generation_tokens_total") == sum(f.usage.completion_tokens for f in finishes)
    assert grown("outrider_prompt_tokens_total") == sum(f.usage.prompt_tokens for f in finishes)
    assert grown("outrider_prefix_cache_hits_total", tier="target") == sum(f.usage.cached_tokens for f in finishes)
    assert grown("outrider_requests_total", outcome="length") == 2
    assert grown("outrider_time_to_first_token_seconds_count") == 2
    assert grown("outrider_inter_token_latency_seconds_count") > 0
    assert total(after, "outrider_num_requests_running") == 0
    for tier in ("draft", "target"):  # of the pools' replicas
        assert grown("outrider_engine_steps_total", tier=tier) > 0
        assert total(after, "outrider_kv_cache_usage_ratio", tier=tier) == 0.0


def test_whichever_ingress_replica_is_asked_tells_what_each_of_them_counts_and_counts_it_once(watched: Watched) -> None:
    name = "outrider_requests_total"
    before = values(watched.page())
    for _ in range(6):
        watched.ask(max_tokens=8)
    pages = [values(watched.page()) for _ in range(3)]
    for page in pages:  # the proxy takes turns
        grown = {who: value - total(before, name, replica=who) for who, value in by_replica(page, name).items()}
        assert len(grown) == 2 and all(grown.values()), "all went to one replica: inconclusive"
        assert sum(grown.values()) == 6
        limits = by_replica(page, "outrider_max_requests_running")
        assert limits.keys() == grown.keys()
    assert [total(page, name) for page in pages] == [total(before, name) + 6] * 3


def test_the_log_names_the_request_in_every_process_and_never_its_text(watched: Watched) -> None:
    request_id, _ = watched.ask(max_tokens=8)
    end = time.monotonic() + 15
    while True:
        lines = log_lines()
        mine = [line for line in lines if str(line.get("request_id", "")).startswith(request_id)]
        if {"ingress", "draft", "target"} <= {line["component"] for line in mine} or time.monotonic() > end:
            break
        time.sleep(0.3)
    assert {"ingress", "draft", "target"} <= {line["component"] for line in mine}
    (ended,) = [line for line in mine if line["message"].startswith("request ended")]
    assert ended["outcome"] == "length"
    assert ended["num_committed"] == 8
    assert not [line for line in lines if "zebra" in repr(line)]
    # Nothing is said twice; draft and target may say the same within a millisecond.
    said = {tuple(line.get(part) for part in ("time", "component", "logger", "message", "request_id")) for line in mine}
    assert len(said) == len(mine)


def test_dashboard_and_alerts_use_what_a_run_exports_through_all_ways(watched: Watched) -> None:
    kill = Once(lambda: os.kill(watched.service.draft.pid(), signal.SIGKILL), after=8)
    watched.ask(max_tokens=96, on_chunk=kill)
    watched.service.draft.wait_ready()
    watched.ask(max_tokens=16)
    page = values(watched.page())
    assert total(page, "outrider_degraded_requests_total") == 1
    uses = [use for _, expression in rules_and_panels() for use in Use.all_of(expression)]
    assert len({use.metric for use in uses}) > 20
    exported: dict[str, set[str]] = {}
    for name, labels in page:
        exported.setdefault(name, set()).update(labels)
    for use in uses:
        assert use.metric in exported, f"{use.metric} is not exported"
        assert use.labels <= exported[use.metric], f"{use.metric} has no such labels: {use}"
    grown = [use for use in uses if total(page, use.metric) > 0 or not use.metric.endswith("_total")]
    assert len({use.metric for use in grown}) > 20
    through_ray = wait_for_ray({f"ray_{use.metric}" for use in grown})  # whose counters begin with their first event
    for use in grown:
        assert use.labels <= through_ray[f"ray_{use.metric}"]
    names = {re.sub("_(bucket|sum|count)$", "", use.metric) for use in uses}
    watched.collector.wait(lambda: names <= {*watched.collector.points}, within_s=15)


Values = dict[tuple[str, tuple[str, ...]], dict[tuple[str, ...], float]]


def values(page: str) -> Values:
    """(name, label names) -> label values -> value."""
    found: Values = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = dict(sorted(sample.labels.items()))
            found.setdefault((sample.name, tuple(labels)), {})[tuple(labels.values())] = sample.value
    return found


def total(page: Values, name: str, **wanted: str) -> float:
    return sum(
        value
        for (found, labels), series in page.items() if found == name
        for names, value in series.items() if wanted.items() <= dict(zip(labels, names, strict=True)).items()
    )


def by_replica(page: Values, name: str) -> dict[str, float]:
    """Sums of a metric by the replica that counted."""
    found: dict[str, float] = {}
    for (metric, labels), series in page.items():
        for names, value in series.items() if metric == name else ():
            who = dict(zip(labels, names, strict=True))["replica"]
            found[who] = found.get(who, 0.0) + value
    return found


def log_lines() -> list[dict[str, Any]]:
    """Of all processes of the service."""
    import ray

    folder = Path(ray._private.worker._global_node.get_logs_dir_path())  # type: ignore[attr-defined]
    lines = []
    for path in folder.glob("worker-*.err"):
        lines += [json.loads(line) for line in path.read_text().splitlines() if line.startswith('{"time"')]
    return lines


def wait_for_ray(names: set[str], within_s: float = 40.0) -> dict[str, set[str]]:
    """Label names of these metrics on the node's metrics port."""
    import ray

    port = ray.nodes()[0]["MetricsExportPort"]
    end = time.monotonic() + within_s
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as response:
            page = response.read().decode()
        found: dict[str, set[str]] = {}
        for name, labels in re.findall(r"^(ray_outrider_\w+)\{(.*)\} ", page, re.MULTILINE):
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
        if names <= found.keys():
            return found
        assert time.monotonic() < end, f"not exported through Ray: {names - found.keys()}"
        time.sleep(1)



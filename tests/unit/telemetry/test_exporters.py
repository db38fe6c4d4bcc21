"""Every way out carries the same series: Prometheus's text, OTLP, and Ray."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from actors.watch import WatchSpec
from cluster.telemetry import metrics as m
from cluster.telemetry.board import Board
from cluster.telemetry.metrics import Distribution, Kind, Metric, Report, Sample
from cluster.telemetry.otlp import OtlpMetrics
from cluster.telemetry.prometheus import text_of
from cluster.telemetry.publisher import Publisher
from cluster.telemetry.through_ray import RayMetrics
from tests.collector import collecting


def report(replica: str = "a", accepted: float = 7.0) -> Report:
    return Report((("model_name", "x"), ("replica", replica)), (
        Sample(m.ACCEPTED_TOKENS, accepted), Sample(m.RUNNING, 2), Sample(m.ACCEPTED_AT, 5, ("0",)),
        Sample(m.ACCEPTED_AT, 2, ("1",)), Sample(m.TTFT, Distribution((0.1, 1.0), (2, 1, 1), 5.5)),
    ))


def every_metric() -> list[Metric]:
    return [each for each in vars(m).values() if isinstance(each, Metric)]


def test_names_follow_one_rule_and_none_is_there_twice() -> None:
    names = [metric.name for metric in every_metric()]
    assert len({*names}) == len(names) > 40
    for metric in every_metric():
        assert metric.name.startswith("outrider_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.help.endswith(".")


def test_prometheus_reads_all_series_of_all_processes() -> None:
    families = {f.name: f for f in text_string_to_metric_families(text_of([report("a"), report("b", 3)]).decode())}
    accepted = families["outrider_spec_decode_num_accepted_tokens"]
    assert accepted.type == "counter"
    assert {(s.labels["replica"], s.value) for s in accepted.samples} == {("a", 7.0), ("b", 3.0)}
    ttft = {
        (sample.name.rpartition("_")[2], sample.labels.get("le")): sample.value
        for sample in families["outrider_time_to_first_token_seconds"].samples if sample.labels["replica"] == "a"
    }
    assert ttft == {("bucket", "0.1"): 2, ("bucket", "1.0"): 3, ("bucket", "+Inf"): 4, ("sum", None): 5.5,
                    ("count", None): 4}


class FakeRay:
    """Stands for `ray.util.metrics`."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        outer = self

        class Instrument:
            def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
                self.name, self.keys = name, set(tag_keys)

            def _at(self, tags: dict[str, str]) -> Any:
                assert set(tags) == self.keys
                return self.name, tuple(sorted(tags.items()))

            def inc(self, more: float, tags: dict[str, str]) -> None:
                assert more > 0
                outer.values[self._at(tags)] = outer.values.get(self._at(tags), 0.0) + more

            def set(self, value: float, tags: dict[str, str]) -> None:
                outer.values[self._at(tags)] = value

        self.Counter = self.Gauge = Instrument

    def value(self, name: str, **wanted: str) -> float:
        return sum(v for (n, tags), v in self.values.items() if n == name and wanted.items() <= dict(tags).items())


def test_ray_gets_what_was_added_since_it_was_last_told() -> None:
    ray = FakeRay()
    metrics = RayMetrics(ray)
    for accepted in (0.0, 7.0, 7.0, 9.0):
        metrics.publish(report(accepted=accepted))
    assert ray.value("outrider_spec_decode_num_accepted_tokens_total") == 9
    assert ray.value("outrider_spec_decode_num_accepted_tokens_per_pos_total", position="1") == 2
    assert ray.value("outrider_num_requests_running", model_name="x") == 2
    assert ray.value("outrider_time_to_first_token_seconds_bucket", le="1.0") == 3
    assert ray.value("outrider_time_to_first_token_seconds_sum") == 5.5


def test_a_collector_gets_every_series_with_its_labels() -> None:
    with collecting() as collector:
        spec = WatchSpec(collector.endpoint, "outrider-test")
        sender = OtlpMetrics.open(spec, {"outrider.component": "ingress"})
        assert sender is not None
        sender.publish(report())
        points = collector.points
        sender.close()
    assert set(points) == {sample.metric.name for sample in report().samples}
    assert [point["position"] for point in points[m.ACCEPTED_AT.name]] == ["0", "1"]
    for found in points.values():
        assert all(point["service.name"] == "outrider-test" and point["model_name"] == "x" for point in found)


def test_a_publication_that_fails_does_not_end_the_next_ones() -> None:
    told: list[int] = []

    async def failing() -> Report:
        told.append(1)
        raise RuntimeError("an actor died")

    async def main() -> None:
        publisher = Publisher(WatchSpec(), {}, failing, interval_s=0.01, through_ray=False, always=True)
        publisher.start()
        async with asyncio.timeout(30):
            while len(told) < 3:
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_the_board_holds_the_latest_word_of_each_process_until_it_is_silent() -> None:
    now = [0.0]
    board = Board(lambda: now[0], stale_s=60.0)
    board.put([report("a", 1), report("b", 1)])
    now[0] = 40.0
    board.put([report("a", 2)])
    assert sorted(dict(each.source)["replica"] for each in board.reports()) == ["a", "b"]
    now[0] = 70.0
    (only,) = board.reports()
    assert only == report("a", 2)

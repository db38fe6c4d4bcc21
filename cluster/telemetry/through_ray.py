"""Reports as metrics of Ray: its agent on each node exposes them as `ray_outrider_…`, with this process's labels."""

from __future__ import annotations

from typing import Any, Protocol

from cluster.telemetry.metrics import Distribution, Kind, Metric, Report


class Instruments(Protocol):
    """The classes of `ray.util.metrics` that are used."""

    Counter: Any
    Gauge: Any


class RayMetrics:
    """Publishes reports of one process.

    Ray's own histograms take single values and estimate their sum. What is counted already goes out as the gauges
    `…_bucket`, `…_sum` and `…_count`, which PromQL reads as it reads a histogram.
    """

    def __init__(self, instruments: Instruments | None = None) -> None:
        if instruments is None:
            from ray.util import metrics as instruments
        self._instruments: Any = instruments
        self._made: dict[str, Any] = {}
        self._counted: dict[tuple[Metric, tuple[str, ...]], float] = {}  # what a counter was told so far

    def publish(self, report: Report) -> None:
        """Record all of a report: a few microseconds for each series."""
        source = dict(report.source)
        for sample in report.samples:
            metric, value = sample.metric, sample.value
            tags = source | dict(zip(metric.labels, sample.labels, strict=True))
            if isinstance(value, Distribution):
                cumulative = value.cumulative
                for bound, count in cumulative:
                    self._gauge(metric, "_bucket", tags | {"le": bound}, count)
                self._gauge(metric, "_sum", tags, value.total)
                self._gauge(metric, "_count", tags, cumulative[-1][1])
            elif metric.kind is Kind.COUNTER:
                more = value - self._counted.get((metric, sample.labels), 0.0)
                if more > 0:
                    self._counted[metric, sample.labels] = value
                    self._of(metric, "", tags, self._instruments.Counter).inc(more, tags=tags)
            else:
                self._gauge(metric, "", tags, value)

    def _gauge(self, metric: Metric, suffix: str, tags: dict[str, str], value: float) -> None:
        self._of(metric, suffix, tags, self._instruments.Gauge).set(value, tags=tags)

    def _of(self, metric: Metric, suffix: str, tags: dict[str, str], kind: Any) -> Any:
        name = metric.name + suffix
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = kind(name, description=metric.help, tag_keys=tuple(tags))
        return found

"""Reports as the text that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.core import Metric as TextFamily

from cluster.telemetry.metrics import Distribution, Kind, Metric, Report

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Families:
    """What `generate_latest` reads."""

    def __init__(self, reports: Iterable[Report]) -> None:
        self._reports = tuple(reports)

    def collect(self) -> Iterator[TextFamily]:
        families: dict[Metric, TextFamily] = {}
        for report in self._reports:
            for sample in report.samples:
                metric = sample.metric
                family = families.get(metric)
                if family is None:
                    name = metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name
                    family = families[metric] = TextFamily(name, metric.help, metric.kind.value)
                labels = dict(report.source) | dict(zip(metric.labels, sample.labels, strict=True))
                if isinstance(sample.value, Distribution):
                    cumulative = sample.value.cumulative
                    for bound, count in cumulative:
                        family.add_sample(f"{metric.name}_bucket", labels | {"le": bound}, count)
                    family.add_sample(f"{metric.name}_sum", labels, sample.value.total)
                    family.add_sample(f"{metric.name}_count", labels, cumulative[-1][1])
                else:
                    family.add_sample(metric.name, labels, sample.value)
        yield from families.values()


def text_of(reports: Iterable[Report]) -> bytes:
    """The exposition format; series of all reports, each with its source's labels."""
    return bytes(generate_latest(_Families(reports)))

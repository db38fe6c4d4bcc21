"""Reports as OTLP metrics, sent to a collector."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from actors.spans import EXPORT_TIMEOUT_S
from actors.watch import WatchSpec
from cluster.telemetry.metrics import Distribution, Kind, Metric, Report, Sample

if TYPE_CHECKING:  # imported late: most services export nothing
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource


class OtlpMetrics:
    """Exports what it is given; nothing is aggregated a second time."""

    def __init__(self, endpoint: str, service_name: str, process: Mapping[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.resources import Resource

        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
        self._resource = Resource.create({"service.name": service_name, **process})
        self._began_ns = time.time_ns()

    @classmethod
    def open(cls, spec: WatchSpec, process: Mapping[str, str]) -> OtlpMetrics | None:
        """None where nothing is exported."""
        return None if spec.otlp_endpoint is None else cls(spec.otlp_endpoint, spec.service_name, process)

    def publish(self, report: Report) -> None:
        """Send a report. Blocks; a collector that does not answer is logged by the exporter, and nothing else."""
        self._exporter.export(metrics_data(report, self._resource, self._began_ns, time.time_ns()))

    def close(self) -> None:
        """Give the connection back."""
        self._exporter.shutdown()


def metrics_data(report: Report, resource: Resource, began_ns: int, now_ns: int) -> export.MetricsData:
    """A report as the exporter takes it; counters and histograms cumulative since `began_ns`."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    families: dict[Metric, list[Sample]] = {}
    for sample in report.samples:
        families.setdefault(sample.metric, []).append(sample)
    source = dict(report.source)
    metrics = [_metric(metric, samples, source, began_ns, now_ns) for metric, samples in families.items()]
    scope = ScopeMetrics(InstrumentationScope("outrider"), metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource, [scope], schema_url="")])


def _metric(
    metric: Metric, samples: list[Sample], source: dict[str, str], began_ns: int, now_ns: int
) -> export.Metric:
    from opentelemetry.sdk.metrics import export

    cumulative = export.AggregationTemporality.CUMULATIVE
    distributions: list[export.HistogramDataPoint] = []
    numbers: list[export.NumberDataPoint] = []
    for sample in samples:
        attributes = source | dict(zip(metric.labels, sample.labels, strict=True))
        value = sample.value
        if isinstance(value, Distribution):
            distributions.append(export.HistogramDataPoint(
                attributes=attributes, start_time_unix_nano=began_ns, time_unix_nano=now_ns, count=sum(value.counts),
                sum=value.total, bucket_counts=value.counts, explicit_bounds=value.bounds,
                min=None, max=None,  # type: ignore[arg-type]  # left out of the message
            ))
        else:
            numbers.append(export.NumberDataPoint(
                attributes=attributes, start_time_unix_nano=began_ns, time_unix_nano=now_ns, value=value,
            ))
    data: export.DataT
    if metric.kind is Kind.HISTOGRAM:
        data = export.Histogram(distributions, cumulative)
    elif metric.kind is Kind.COUNTER:
        data = export.Sum(numbers, cumulative, is_monotonic=True)
    else:
        data = export.Gauge(numbers)
    return export.Metric(metric.name, metric.help, unit="", data=data)

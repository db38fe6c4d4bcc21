"""Settings of what the service shows of itself."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from actors.watch import WatchSpec
from cluster.config_section import Seconds, Section


class TelemetryConfig(Section):
    """Traces and metrics. `/metrics` on the HTTP port needs none of this."""

    otlp_endpoint: str | None = Field(
        None, description='of an OpenTelemetry collector (gRPC), e.g. "http://127.0.0.1:4317"; null: nothing is sent. '
        "Its credentials, if any, come from the environment (OTEL_EXPORTER_OTLP_HEADERS)",
    )
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="share of requests that are traced; a caller's traceparent decides for its own",
    )
    service_name: str = Field("outrider", min_length=1, description="as collectors name it")
    include_text: bool = Field(False, description="put prompts and completions into traces")
    ray_metrics: bool = Field(True, description="publish metrics through Ray as well, on every node's metrics port")
    interval_s: Seconds = Field(10.0, description="between two publications of metrics, s")

    @model_validator(mode="after")
    def _check(self) -> Self:
        endpoint = self.otlp_endpoint
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ValueError(f"otlp_endpoint {endpoint!r} has no scheme; write http://{endpoint}, or https:// for TLS")
        if self.include_text and endpoint is None:
            raise ValueError("include_text without otlp_endpoint has no effect; set otlp_endpoint")
        return self


class LoggingConfig(Section):
    """The log of every process, on stderr, which Ray keeps."""

    format: Literal["text", "json"] = Field("text", description="json: one object per line")
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least level that is written")


def watch_spec(telemetry: TelemetryConfig, logging: LoggingConfig) -> WatchSpec:
    """What every process is told."""
    return WatchSpec(telemetry.otlp_endpoint, telemetry.service_name, logging.format, logging.level)

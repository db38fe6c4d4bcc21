"""What a process of the service needs to know to be watched: where traces go, and how it logs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WatchSpec:
    """Made by `cluster.config`; the same for every process."""

    otlp_endpoint: str | None = None  # of a collector (gRPC), e.g. "http://127.0.0.1:4317"; None: nothing is traced
    service_name: str = "outrider"
    log_format: str = "text"  # "text" | "json"
    log_level: str = "INFO"

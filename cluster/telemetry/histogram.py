"""Counts values into buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from cluster.telemetry.metrics import Distribution

# Seconds. From a pass of a small model on a GPU to a long prompt on a CPU, about two buckets per doubling or tripling.
LATENCY_S = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0,
    60.0, 300.0,
)


class Histogram:
    """Mutable twin of `Distribution`."""

    def __init__(self, bounds: Sequence[float] = LATENCY_S) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """A value that was met `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def snapshot(self) -> Distribution:
        """What was met so far."""
        return Distribution(self._bounds, tuple(self._counts), self._total)

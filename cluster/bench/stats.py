"""Statistics of measurements: pure functions of lists of numbers, none of which assume a normal law.

Machines are noisy and drift, so medians, quartiles and ratios of neighbouring runs are used throughout.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of `count` values."""

    median: float
    low: float  # first quartile
    high: float  # third quartile
    count: int
    of_minima: float | None = None  # of a ratio: smallest by smallest, which noise that only ever slows cannot hide

    def scaled(self, factor: float) -> Spread:
        """The same in another unit."""
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.count)

    def as_json(self, digits: int = 4) -> dict[str, float | int]:
        """Plain JSON types."""
        found: dict[str, float | int] = {
            "median": round(self.median, digits), "q1": round(self.low, digits), "q3": round(self.high, digits),
            "count": self.count,
        }
        if self.of_minima is not None:
            found["of_minima"] = round(self.of_minima, digits)
        return found


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles. Raises ValueError without values."""
    if len(values) == 0:
        raise ValueError("no values: nothing was measured")
    low, median, high = np.quantile(np.asarray(values, np.float64), (0.25, 0.5, 0.75)).tolist()
    return Spread(median, low, high, len(values))


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` (0 to 1) of `values` lie, by linear interpolation; None without values."""
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}: choose it in [0, 1]")
    return float(np.quantile(np.asarray(values, np.float64), share)) if len(values) else None


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Spread of `numerators[i] / denominators[i]` (times), where i is a round in which both were measured.

    Neighbours in time share the machine's state, so its drift cancels in each ratio, which it would not in
    a ratio of two medians.
    """
    if len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} and {len(denominators)} values are not pairs")
    if any(value <= 0 for value in denominators):
        raise ValueError("a denominator is not positive")
    ratios = spread([a / b for a, b in zip(numerators, denominators, strict=True)])
    return replace(ratios, of_minima=min(numerators) / min(denominators))


def steady_rate(times: Sequence[Sequence[float]]) -> float:
    """Events per second while all streams were running; `times[s]` are the ascending seconds of stream s's events.

    Counted from the last stream's first event to the first stream's last one: ramps at both ends are left
    out. Raises ValueError when the streams never ran together.
    """
    if not times or any(len(each) < 2 for each in times):
        raise ValueError("a rate needs at least two events of each stream")
    begin = max(each[0] for each in times)
    end = min(each[-1] for each in times)
    if end <= begin:
        raise ValueError("the streams never ran together: give each more tokens")
    return sum(sum(1 for t in each if begin < t <= end) for each in times) / (end - begin)


def per_token_gaps(times: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Inter-token latencies of a stream that got `counts[i]` tokens at `times[i]`, one entry per token after the first.

    Tokens that arrive together share the time since the chunk before: n tokens after g seconds count as n
    tokens after g / n each. The first chunk's own tokens have no latency among themselves (its time is
    the time to first token).
    """
    gaps: list[float] = []
    for (before, now), count in zip(itertools.pairwise(times), counts[1:], strict=True):
        gaps.extend([(now - before) / count] * count)
    return gaps


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Theil-Sen slope: the median of the slopes between all pairs of points; deaf to a few outliers.

    Sen 1968, "Estimates of the regression coefficient based on Kendall's tau". Raises ValueError with fewer
    than two distinct times.
    """
    t, v = np.asarray(times, np.float64), np.asarray(values, np.float64)
    first, second = np.triu_indices(len(t), k=1)
    apart = t[second] != t[first]
    if not apart.any():
        raise ValueError("a slope needs values at two different times")
    first, second = first[apart], second[apart]
    return float(np.median((v[second] - v[first]) / (t[second] - t[first])))


def growth(times: Sequence[float], values: Sequence[float]) -> float:
    """By how much `values` grew from the first to the last time, outliers aside (in their unit)."""
    return slope(times, values) * (max(times) - min(times))


def thinned(values: Sequence[float], limit: int) -> list[float]:
    """At most `limit` of `values`, evenly spread, ends included: a quadratic method needs no more."""
    if len(values) <= limit:
        return list(values)
    return [values[i] for i in np.linspace(0, len(values) - 1, limit).round().astype(int).tolist()]


def perplexity(losses: Sequence[float]) -> float:
    """exp of the mean negative log-likelihood (nats per token)."""
    if len(losses) == 0:
        raise ValueError("a perplexity needs at least one token")
    return math.exp(math.fsum(losses) / len(losses))

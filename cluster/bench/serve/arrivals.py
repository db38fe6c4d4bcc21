"""When the requests of an open loop come."""

from __future__ import annotations

import numpy as np


def poisson(rate_per_s: float, duration_s: float, rng: np.random.Generator) -> list[float]:
    """Ascending arrival times in [0, duration_s) of a Poisson process."""
    if rate_per_s <= 0 or duration_s <= 0:
        raise ValueError(f"rate {rate_per_s:g}/s over {duration_s:g} s: both must be positive")
    times: list[float] = []
    now = rng.exponential(1 / rate_per_s)
    while now < duration_s:
        times.append(float(now))
        now += rng.exponential(1 / rate_per_s)
    return times

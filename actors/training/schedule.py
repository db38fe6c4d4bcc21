"""The learning rate over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear warm-up, then half a cosine down to a share of the peak."""

    peak: float
    warmup_share: float = 0.03
    last_share: float = 0.05  # of the peak

    def rate(self, progress: float) -> float:
        """At `progress` 0 to 1 through the run."""
        if progress < self.warmup_share:
            return self.peak * max(progress / self.warmup_share, 0.01)
        fallen = min((progress - self.warmup_share) / (1.0 - self.warmup_share), 1.0)
        return self.peak * (self.last_share + (1.0 - self.last_share) * 0.5 * (1.0 + math.cos(math.pi * fallen)))

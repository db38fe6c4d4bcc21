"""How long an emulated pass takes, and waiting until it is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

SPIN_S = 100e-6  # a sleeping thread wakes about this much late


@dataclass(frozen=True, slots=True)
class Pace:
    """Time of a pass: flat while the weights are what has to be read, then linear in the rows (the roofline)."""

    pass_s: float
    flat_rows: int
    row_s: float  # of each row beyond `flat_rows`

    def seconds(self, num_rows: int) -> float:
        """Length of a pass over `num_rows` rows."""
        return self.pass_s + max(0, num_rows - self.flat_rows) * self.row_s


class Pacer:
    """Ends a pass when its time is over, counted from its start; what was really computed is part of it.

    Sleeps, so that passes of many replicas on few cores overlap in time as they would on devices of their own.
    """

    def __init__(
        self, pace: Pace, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.pace = pace
        self.num_late = 0  # passes whose computing alone took longer than they may take
        self._clock = clock
        self._sleep = sleep

    def now(self) -> float:
        """Time on the pacer's clock, in seconds."""
        return self._clock()

    def finish(self, began_s: float, num_rows: int) -> None:
        """Return when a pass of `num_rows` that began at `began_s` is over."""
        deadline_s = began_s + self.pace.seconds(num_rows)
        left_s = deadline_s - self._clock()
        if left_s < 0:
            self.num_late += 1
            return
        if left_s > SPIN_S:
            self._sleep(left_s - SPIN_S)
        while self._clock() < deadline_s:
            self._sleep(0.0)  # lets others run, and returns at once

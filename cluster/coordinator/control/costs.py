"""What a pass of a replica costs as a function of its rows, learned from (rows, seconds) samples.

The form is the roofline's: flat while the weights' bytes bound a pass, then linear in the rows,
`a + c * max(0, rows - knot)`. Samples are averaged in bins of rows, so that a low load stays known under a high one.
"""

from __future__ import annotations

import math

MEMORY = 40.0  # samples that a bin remembers
OUTLIER = 3.0  # a sample counts as at most this many times its bin's mean, and at least that part of it
STEP_OUT = 1.5  # passes may get this much larger than the largest known
NOISE = 0.1  # of one pass's seconds, relative
LIKELY_DOUBLE = 32  # rows beyond the knot that may well double a pass's seconds
SHORTEST_S = 1e-7  # no pass is shorter
FREE_ROWS = 16  # nobody needs to have seen a pass of so few rows
SAME_PASSES = 3.0  # reports of passes that took exactly as long, within so many of them, are of one


class Average:
    """A mean that forgets: of all values at first, then of about the last `memory`."""

    __slots__ = ("_memory", "num", "value")

    def __init__(self, memory: float = 20.0) -> None:
        self._memory = memory
        self.num = 0.0
        self.value = 0.0

    def add(self, value: float) -> None:
        """Add a value; one far out is clipped once the mean is known."""
        if self.num >= 3:
            value = min(value, OUTLIER * self.value + 1e-3)
        self.num = min(self.num + 1, self._memory)
        self.value += (value - self.value) / self.num


class PassCurve:
    """Seconds of one replica's passes."""

    __slots__ = ("_bins", "_flat", "_knot", "_last", "_slope", "_stale")

    def __init__(self) -> None:
        self._bins: dict[int, list[float]] = {}  # bin: samples remembered, mean rows, mean seconds
        self._flat = self._slope = self._knot = 0.0
        self._stale = 0.0  # samples since the last fit
        self._last: dict[tuple[int, float], float] = {}  # when: several sequences report one pass

    @property
    def is_known(self) -> bool:
        """Whether any pass was seen."""
        return bool(self._bins)

    def observe(self, rows: int, seconds: float, now: float = 0.0, round_s: float = 0.0) -> bool:
        """Add a pass that was reported at `now`, at the end of a round of `round_s`, and say whether it is news.

        Rows and seconds that are not positive are no pass. Equal ones are the same pass for a while (within a round all
        that took part have reported it): later, on a device that always takes the same time, another.
        """
        if rows < 1 or not SHORTEST_S < seconds < math.inf:
            return False
        seen_at = self._last.pop((rows, seconds), None)
        is_same = seen_at is not None and now - seen_at < max(SAME_PASSES * seconds, round_s)
        self._last[rows, seconds] = seen_at if is_same and seen_at is not None else now
        if len(self._last) > 8:
            del self._last[next(iter(self._last))]
        if is_same:
            return False
        key = _bin(rows)
        entry = self._bins.get(key)
        if entry is None:
            seconds = min(seconds, self._plausible(rows))
            self._bins[key] = [1.0, float(rows), seconds]
            self._stale = math.inf
            return True
        num, mean_rows, mean = entry
        if num >= 3:
            seconds = min(max(seconds, mean / OUTLIER), mean * OUTLIER)
        num = min(num + 1, MEMORY)
        self._bins[key] = [num, mean_rows + (rows - mean_rows) / num, mean + (seconds - mean) / num]
        self._stale += 1 / num
        return True

    def _plausible(self, rows: int) -> float:
        """More rows cost at most proportionally more: a first sample above that, with room for noise, was a stall."""
        below = max((entry for entry in self._bins.values() if entry[1] <= rows), key=lambda e: e[1], default=None)
        return math.inf if below is None else OUTLIER / 2 * below[2] * rows / below[1]

    def like(self) -> PassCurve:
        """A curve for another replica of the same tier: the same so far, and quick to learn otherwise."""
        curve = PassCurve()
        curve._bins = {key: [min(num, 3.0), rows, seconds] for key, (num, rows, seconds) in self._bins.items()}
        curve._stale = math.inf
        return curve

    def seconds(self, rows: float) -> float:
        """Of a pass of so many rows; 0 while nothing is known."""
        flat, slope, knot = self.terms()
        return flat + slope * (rows - knot) if rows > knot else flat

    def terms(self) -> tuple[float, float, float]:
        """Seconds of a small pass, seconds per further row, and from how many rows on."""
        if self._stale > 0.25:
            self._fit()
        return self._flat, self._slope, self._knot

    def num_samples(self, rows: float) -> float:
        """How many passes of about so many rows were seen, up to `MEMORY`."""
        entry = self._bins.get(_bin(rows))
        return entry[0] if entry else 0.0

    def reach(self) -> float:
        """Rows of the largest pass whose cost may be trusted to the curve."""
        largest = max((entry[1] for entry in self._bins.values()), default=0.0)
        return max(STEP_OUT * largest, FREE_ROWS)

    def _fit(self) -> None:
        """Weighted least squares in relative error, over all places of the knot."""
        self._stale = 0.0
        points = sorted((rows, seconds, num / seconds**2) for num, rows, seconds in self._bins.values())
        if not points:
            return
        weight = sum(w for _, _, w in points)
        mean = sum(s * w for _, s, w in points) / weight
        self._flat, self._slope, self._knot = mean, 0.0, points[-1][0]
        ridge = (NOISE * LIKELY_DOUBLE / mean) ** 2  # a slope must be seen over more rows than noise could feign it
        best = sum(w * (s - mean) ** 2 for _, s, w in points)
        for i, knot in _knots([rows for rows, _, _ in points]):
            x_mean = sum((r - knot) * w for r, _, w in points[i + 1 :]) / weight
            xx = sum(w * (r - knot) ** 2 for r, _, w in points[i + 1 :]) - weight * x_mean**2 + ridge
            xy = sum(w * (r - knot) * (s - mean) for r, s, w in points[i + 1 :])
            if xx <= 0 or xy <= 0:
                continue
            slope = xy / xx
            flat = mean - slope * x_mean
            error = ridge * slope**2 + sum(w * (s - flat - slope * max(0.0, r - knot)) ** 2 for r, s, w in points)
            if error < best and flat > 0:
                best = error
                self._flat, self._slope, self._knot = flat, slope, knot


def _knots(rows: list[float]) -> list[tuple[int, float]]:
    """Where the knot may be: at each of the rows seen but the last, and in between where these are far apart.

    With the index of the last row seen up to it.
    """
    knots = []
    for i, (here, there) in enumerate(zip(rows, rows[1:], strict=False)):
        num = min(6, int(8 * math.log2(there / here)) + 1)
        knots += [(i, here + (there - here) * j / num) for j in range(num)]
    return knots


def _bin(rows: float) -> int:
    """One bin for each count of rows up to 8, then four to each doubling."""
    return round(rows) if rows <= 8 else 8 + int(4 * math.log2(rows / 8))

"""Delays: a wish must last before replicas come or go. Pure; the time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

ROUNDING_S = 1e-6  # times are differences of large numbers


@dataclass(frozen=True, slots=True)
class Delays:
    """How long a wish must last, s."""

    up_s: float
    down_s: float
    zero_s: float  # to give up the last replica


@dataclass(frozen=True, slots=True)
class Wishes:
    """What was wished for since when, oldest first; a wish lasts until the next one."""

    runs: tuple[tuple[float, int], ...] = ()  # (since, number of replicas)

    def heard(self, now: float, wish: int, keep_s: float) -> Wishes:
        """These and a new one; what ended more than `keep_s` ago is forgotten."""
        runs = self.runs if self.runs and self.runs[-1][1] == wish else (*self.runs, (now, wish))
        ends = [since for since, _ in runs[1:]]
        gone = sum(end < now - keep_s for end in ends)
        return Wishes(runs[gone:])

    def lasting(self, now: float, for_s: float) -> tuple[int, int] | None:
        """The fewest and the most wished for in the last `for_s`; None: nobody has wished for so long."""
        if not self.runs or self.runs[0][0] > now - for_s + ROUNDING_S:
            return None
        ends = [*(since for since, _ in self.runs[1:]), float("inf")]
        wishes = [wish for (_, wish), end in zip(self.runs, ends, strict=True) if end > now - for_s + ROUNDING_S]
        return min(wishes), max(wishes)


def settle(wishes: Wishes, now: float, current: int, delays: Delays) -> int:
    """How many replicas there should be now.

    More: as many as were wished for all through `up_s` (the fewest of them); from none at once. Fewer: as few as the
    most of `down_s`, so that one burst keeps what it needed. The last one goes when none was wished for in `zero_s`.
    """
    latest = wishes.runs[-1][1] if wishes.runs else current
    if current == 0:
        return latest
    up = wishes.lasting(now, delays.up_s)
    if up is not None and up[0] > current:
        return up[0]
    down = wishes.lasting(now, delays.down_s)
    if down is not None and max(1, down[1]) < current:
        return max(1, down[1])
    zero = wishes.lasting(now, max(delays.down_s, delays.zero_s))
    if current == 1 and zero is not None and zero[1] == 0:
        return 0
    return current

"""When a service has recovered, from what its clients saw (pure functions)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STEP_S = 0.1
WINDOW_S = 0.8  # over which a rate is taken
STEADY_S = 1.0  # a recovery lasts at least so long
ENOUGH = 0.4  # of the tokens per second before the fault: whatever is started anew meanwhile takes its part
ENOUGH_DRAFTED = 0.5  # of the share of tokens that came from drafts before


@dataclass(frozen=True, slots=True)
class Tick:
    """Tokens that came in one chunk."""

    at_s: float
    num_tokens: int
    num_accepted: int  # of these, from drafts


@dataclass(frozen=True, slots=True)
class Pace:
    """What a load reaches."""

    tokens_per_s: float
    accepted_per_s: float

    def reached_by(self, other: Pace) -> bool:
        """Whether `other` is about as good."""
        return (
            other.tokens_per_s >= ENOUGH * self.tokens_per_s and other.drafted >= ENOUGH_DRAFTED * self.drafted
        )

    @property
    def drafted(self) -> float:
        """Share of tokens that came from drafts."""
        return self.accepted_per_s / self.tokens_per_s if self.tokens_per_s else 0.0


def pace(ticks: Sequence[Tick], begin_s: float, end_s: float) -> Pace:
    """The rates between two times."""
    seen = [tick for tick in ticks if begin_s <= tick.at_s < end_s]
    length_s = end_s - begin_s
    return Pace(sum(t.num_tokens for t in seen) / length_s, sum(t.num_accepted for t in seen) / length_s)


def recovery_s(ticks: Sequence[Tick], before: Pace, blow_s: float, until_s: float) -> float | None:
    """Seconds from the blow until the pace is back, drafts included, and stays; None: not until `until_s`.

    0 when it never fell.
    """
    found: float | None = None
    start = blow_s
    while start + WINDOW_S <= until_s:
        if not before.reached_by(pace(ticks, start, start + WINDOW_S)):
            found = None
        elif found is None:
            found = start
        start += STEP_S
    if found is None or until_s - found < STEADY_S:
        return None
    return found - blow_s


def longest_gap_s(times_s: Sequence[float], blow_s: float) -> float:
    """Longest wait of a stream for its next chunk that ended after the blow; 0 if it had none."""
    gaps = [later - earlier for earlier, later in zip(times_s, times_s[1:], strict=False) if later >= blow_s]
    return max(gaps, default=0.0)

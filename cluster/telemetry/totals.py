"""Sums of what speculation did for many requests, and the shares that follow from them."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from cluster.coordinator.request import SpeculationFigures


@dataclass(slots=True)
class Totals:
    """`SpeculationFigures` added up."""

    rounds: int = 0
    committed: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    recovered: int = 0
    bonus: int = 0
    relaxed: int = 0
    drafted_at: Counter[int] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)
    accepted_by_tier: Counter[int] = field(default_factory=Counter)
    lease_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    wait_s: float = 0.0
    control_s: float = 0.0
    prompts_by_pool: Counter[int] = field(default_factory=Counter)  # tokens that each pool of a ladder was asked for
    cached_by_pool: Counter[int] = field(default_factory=Counter)  # of these, found
    ahead: Counter[str] = field(default_factory=Counter)
    degraded: Counter[str] = field(default_factory=Counter)
    degraded_steps: int = 0
    degraded_requests: int = 0
    lease_moves: int = 0

    def add(self, found: SpeculationFigures, num_prompt_tokens: int) -> None:
        """The figures of one request."""
        self.rounds += found.rounds
        self.committed += found.committed
        self.drafts += found.drafted_at[0] if found.drafted_at else 0  # every draft reaches its first position
        self.drafted += found.drafted
        self.accepted += found.accepted
        self.recovered += found.recovered
        self.bonus += found.bonus
        self.relaxed += found.relaxed
        self.drafted_at.update(dict(enumerate(found.drafted_at)))
        self.accepted_at.update(dict(enumerate(found.accepted_at)))
        self.accepted_by_tier.update(found.accepted_by_tier)
        self.lease_s += found.lease_s
        self.draft_s += found.draft_s
        self.verify_s += found.verify_s
        self.wait_s += found.wait_s
        self.control_s += found.control_s
        self.prompts_by_pool.update(dict.fromkeys(found.cached_by_tier, num_prompt_tokens))
        self.cached_by_pool.update(found.cached_by_tier)
        self.ahead.update(found.ahead)
        self.degraded.update(found.degraded)
        self.degraded_steps += found.degraded_steps
        self.degraded_requests += bool(found.degraded)
        self.lease_moves += found.lease_moves


@dataclass(frozen=True, slots=True)
class Shares:
    """Of one stretch of time; None where nothing happened that could be a share."""

    acceptance_rate: float | None = None
    acceptance_length: float | None = None  # MAT
    draft_length: float | None = None
    draft_overhead: float | None = None
    overlap_hit_rate: float | None = None
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Mark:
    time_s: float
    rounds: int
    committed: int
    drafts: int
    drafted: int
    accepted: int
    draft_s: float
    all_s: float
    hits: int
    overlaps: int


class Window:
    """Shares of the last `span_s` seconds, of totals that are shown to it now and then."""

    def __init__(self, now_s: float, span_s: float = 60.0) -> None:
        self._span_s = span_s
        self._marks = deque([_Mark(now_s, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0)])

    def look(self, totals: Totals, now_s: float) -> Shares:
        """Remember the totals, and compare them with those of `span_s` ago (or the oldest there are)."""
        new = _Mark(
            now_s, totals.rounds, totals.committed, totals.drafts, totals.drafted, totals.accepted, totals.draft_s,
            totals.draft_s + totals.verify_s + totals.wait_s, totals.ahead["hit"], totals.ahead.total(),
        )
        self._marks.append(new)
        while len(self._marks) > 2 and self._marks[1].time_s <= now_s - self._span_s:
            self._marks.popleft()
        old = self._marks[0]
        return Shares(
            acceptance_rate=_share(new.accepted - old.accepted, new.drafted - old.drafted),
            acceptance_length=_share(new.committed - old.committed, new.rounds - old.rounds),
            draft_length=_share(new.drafted - old.drafted, new.drafts - old.drafts),
            draft_overhead=_share(new.draft_s - old.draft_s, new.all_s - old.all_s),
            overlap_hit_rate=_share(new.hits - old.hits, new.overlaps - old.overlaps),
            tokens_per_s=_share(new.committed - old.committed, new.time_s - old.time_s),
        )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None

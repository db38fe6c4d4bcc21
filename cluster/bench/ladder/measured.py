"""One variant through gRPC: what its answers amount to. Pure functions of outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.bench.serve.asks import Figures, Outcome
from cluster.bench.stats import Spread, paired_ratio


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of asking a service. `lookahead` None: the service's own choice; 0: plain decoding."""

    name: str
    lookahead: int | None
    theory: float | None = None  # speedup over plain decoding


@dataclass(frozen=True, slots=True)
class Measured:
    """The answers of a variant, all from one stream, and how busy the pools were meanwhile."""

    variant: Variant
    outcomes: Sequence[Outcome]
    busy: Mapping[str, float] = field(default_factory=dict)  # pool -> share of the time that it spent in passes

    @property
    def seconds_per_token(self) -> float:
        """After the first chunk of each answer, over all answers: the prompt's pass is no part of it."""
        return sum(_seconds(outcome) for outcome in self.outcomes) / sum(_tokens(outcome) for outcome in self.outcomes)

    @property
    def each_seconds_per_token(self) -> list[float]:
        """The same, answer by answer."""
        return [_seconds(outcome) / _tokens(outcome) for outcome in self.outcomes]

    @property
    def figures(self) -> list[Figures]:
        """What the service said of each answer."""
        return [outcome.figures for outcome in self.outcomes if outcome.figures is not None]

    @property
    def mean_committed(self) -> float:
        """Tokens per round."""
        parts = self.figures
        return sum(part.num_completion_tokens for part in parts) / max(1, sum(part.num_rounds for part in parts))

    @property
    def agreement(self) -> float | None:
        """Share of the drafted tokens that were looked at and kept; None without any."""
        accepted = sum(part.num_accepted for part in self.figures)
        looked_at = accepted + sum(part.num_recovered for part in self.figures)
        return accepted / looked_at if looked_at else None

    @property
    def overlapped(self) -> dict[str, int]:
        """Rounds by what became of the drafts for their outcomes."""
        total: Counter[str] = Counter()
        for part in self.figures:
            total.update(part.overlapped)
        return dict(total)

    @property
    def hit_rate(self) -> float | None:
        """Share of the rounds with drafts for their outcomes in which one fitted; None without such rounds."""
        total = sum(self.overlapped.values())
        return self.overlapped.get("hit", 0) / total if total else None

    @property
    def accepted_by_tier(self) -> dict[int, int]:
        """Accepted tokens by the tier that proposed them."""
        total: Counter[int] = Counter()
        for part in self.figures:
            total.update(part.accepted_by_tier)
        return dict(total)

    def as_json(self) -> dict[str, object]:
        """Plain JSON types."""
        agreement, hit_rate = self.agreement, self.hit_rate
        return {
            "tokens_per_s": round(1 / self.seconds_per_token, 3), "mat": round(self.mean_committed, 3),
            "agreement": None if agreement is None else round(agreement, 4),
            "hit_rate": None if hit_rate is None else round(hit_rate, 4), "overlapped": self.overlapped,
            "busy": {name: round(share, 4) for name, share in self.busy.items()},
            "accepted_by_tier": {str(tier): count for tier, count in sorted(self.accepted_by_tier.items())},
            "degraded_rounds": sum(part.num_degraded for part in self.figures), "answers": len(self.outcomes),
        }


def speedup(plain: Measured, variant: Measured) -> float:
    """How many times as fast, over all answers: tokens of long and of short rounds weigh alike."""
    return plain.seconds_per_token / variant.seconds_per_token


def speedups(plain: Measured, variant: Measured) -> Spread:
    """The same, answer by answer of the same round: what slows the machine down slows both."""
    return paired_ratio(plain.each_seconds_per_token, variant.each_seconds_per_token)


def _seconds(outcome: Outcome) -> float:
    return outcome.times_s[-1] - outcome.times_s[0]


def _tokens(outcome: Outcome) -> int:
    return sum(outcome.counts[1:])

"""Every setting worth trying, simulated under one load: which is fastest, and which is cheapest for a token."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.bench.watch import Watcher
from cluster.coordinator.settings import CoordinatorSettings, OverlapSettings
from cluster.planning.costs import Costs
from cluster.simulation.load import Closed
from cluster.simulation.outcome import LoadFigures
from cluster.simulation.plan import run_all
from cluster.simulation.scenario import DRAFT_TIMEOUT_S, FixedLookahead, PoolSpec, Scenario

LOWER_LOOKAHEAD = 4  # tokens that tier 0 drafts at a time for a middle tier
CLOSE = 0.02  # settings this near the best are as good: then the one with the fewest replicas is taken
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Load:
    """What has to be served."""

    streams: int = 1  # at once
    targets: int = 1  # replicas
    num_tokens: int = 96  # of each answer
    sequences: int = 24  # at least; and three for each stream

    @property
    def num_sequences(self) -> int:
        """Answers of one simulation."""
        return max(self.sequences, 3 * self.streams)


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a replica, per hour."""

    target: float = 0.0
    draft: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting."""

    tiers: tuple[int, ...]  # places in `Costs` below the target that take part; none: plain decoding
    lookahead: int = 0  # tokens drafted for a pass of the target
    overlap: bool = False
    drafters: int = 0  # replicas of each tier below the target

    def name(self, costs: Costs) -> str:
        """As tables show it."""
        if not self.tiers:
            return "target alone"
        ladder = " → ".join(costs.names[tier] for tier in (*self.tiers, -1))
        return f"{ladder}, k = {self.lookahead}{', overlapped' if self.overlap else ''}, {self.drafters} drafters"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a setting comes to."""

    choice: Choice
    figures: LoadFigures
    speedup: float  # tokens/s over those of the targets alone
    cost: float | None  # of a million tokens; None: no prices


def choices(costs: Costs, lookaheads: Sequence[int], drafters: Sequence[int], load: Load) -> list[Choice]:
    """All settings, plain decoding first. More replicas than streams serve nobody."""
    lower = range(len(costs.devices) - 1)
    ladders = [some for count in range(1, len(lower) + 1) for some in itertools.combinations(lower, count)]
    sizes = sorted({min(size, load.streams) for size in drafters})
    return [Choice(()), *(
        Choice(ladder, k, overlap, size)
        for ladder in ladders for k in lookaheads for overlap in (False, True) for size in sizes
    )]


def scenario(costs: Costs, choice: Choice, load: Load, seed: int = 0) -> Scenario:
    """A setting under a load."""
    overlap = None
    if choice.overlap:
        overlap = OverlapSettings(num_branches=2 * (choice.lookahead + 1), num_guesses=2, num_tokens=choice.lookahead)
    places = [*choice.tiers, len(costs.devices) - 1]
    pools = tuple(
        PoolSpec(costs.names[place], costs.devices[place], load.targets if place == places[-1] else choice.drafters,
                 max_sequences=max(64, load.streams), gather_s=costs.gather_s if place == places[-1] else 0.0)
        for place in places
    )
    has_middle = len(choice.tiers) > 1
    return Scenario(
        tiers=pools, load=Closed(load.num_sequences, load.streams), num_tokens=load.num_tokens, seed=seed,
        policy=FixedLookahead(min(choice.lookahead, LOWER_LOOKAHEAD) if has_middle else choice.lookahead),
        windows=(choice.lookahead,) * (len(choice.tiers) - 1),
        settings=CoordinatorSettings(draft_timeout_s=DRAFT_TIMEOUT_S, overlap=overlap),
    )


def search(
    costs: Costs, tried: Sequence[Choice], load: Load, prices: Prices, workers: int, watcher: Watcher
) -> list[Estimate]:
    """An estimate of each of `tried`, the first of which is plain decoding."""
    found = run_all([scenario(costs, choice, load) for choice in tried], workers, watcher)
    plain = found[0].tokens_per_s
    return [
        Estimate(choice, figures, figures.tokens_per_s / plain, cost_of(choice, figures, load, prices))
        for choice, figures in zip(tried, found, strict=True)
    ]


def cost_of(choice: Choice, figures: LoadFigures, load: Load, prices: Prices) -> float | None:
    """Of a million tokens."""
    hourly = load.targets * prices.target + len(choice.tiers) * choice.drafters * prices.draft
    return hourly / (figures.tokens_per_s * HOUR_S) * 1e6 if hourly else None


def fastest(estimates: Sequence[Estimate]) -> Estimate:
    """The smallest of those whose throughput is close to the best."""
    most = max(estimate.speedup for estimate in estimates)
    close = [estimate for estimate in estimates if estimate.speedup >= (1.0 - CLOSE) * most]
    return min(close, key=lambda each: (len(each.choice.tiers) * each.choice.drafters, -each.speedup))


def cheapest(estimates: Sequence[Estimate]) -> Estimate | None:
    """The least cost of a token; None without prices."""
    priced = [estimate for estimate in estimates if estimate.cost is not None]
    return min(priced, key=lambda each: each.cost or 0.0) if priced else None

"""The emulated pair with rounds that overlap: drafts for the outcomes of the pass under way."""

from __future__ import annotations

from cluster.bench.ladder import theory
from cluster.bench.ladder.bench import EMULATED, LadderBench
from cluster.bench.ladder.configs import pair
from cluster.bench.ladder.measured import Measured, Variant, speedup, speedups
from cluster.bench.ladder.parts.pairs import against_plain, best_sync_speedup, pair_costs
from cluster.config import Config

OVERLAP = {"branches": 24, "guesses": 2, "tokens": 12}
LOOKAHEADS = (5,)  # of the drafts that are waited for, after a miss


def overlap(bench: LadderBench) -> None:
    """`overlap_speedup`, against the best synchronous chain; how often it hit, and how long the target idled."""
    best_sync = best_sync_speedup(bench)
    config = pair({"overlap": OVERLAP})
    variants = [Variant(f"overlap, k = {k}", k, overlap_theory(config, k)) for k in LOOKAHEADS]
    with bench.services(overlap=config) as services:
        plain, found = against_plain(bench, services["overlap"], "overlap", variants)
    best = max(found, key=lambda measured: speedup(plain, measured))
    bench.add("overlap_speedup", speedup(plain, best), EMULATED, speedups(plain, best))
    bench.add("overlap_vs_best_sync", speedup(plain, best) / best_sync, EMULATED)
    bench.add("overlap_hit_rate", best.hit_rate or 0.0, EMULATED)
    bench.add("target_idle_share", idle_share(best, config), EMULATED)


def idle_share(measured: Measured, config: Config) -> float:
    """Share of the stream's time in which the target ran no pass."""
    return 1.0 - measured.busy.get(config.target.name, 0.0)


def overlap_theory(config: Config, missed: int) -> float:
    """Of the configured overlap, with a branch for every accepted length, all of them there in time."""
    ahead, draft = config.speculation.overlap, config.tiers[0].emulation
    assert ahead is not None and draft is not None
    agreement, cost, hops = pair_costs(config)
    hit_rate = theory.chain_hit_rate(agreement, (draft.further_guesses or (0.0,))[0], ahead.tokens)
    return theory.overlap_speedup(agreement, ahead.tokens, cost, hit_rate, missed, hops)

"""The emulated pair with drafts that branch: trees that take turns with the target, and trees drafted ahead."""

from __future__ import annotations

from actors.emulation.voice import shares
from cluster.bench.ladder import theory
from cluster.bench.ladder.bench import EMULATED, LadderBench
from cluster.bench.ladder.configs import pair
from cluster.bench.ladder.measured import Variant, speedup, speedups
from cluster.bench.ladder.parts.pairs import against_plain, best_sync_speedup, pair_costs
from cluster.config import Config

NODES = 63  # a pass of the target is flat to 64 rows
DEPTHS = (10,)
AHEAD = {"branches": 16, "guesses": 2, "tokens": 10}
AHEAD_NODES = 16  # of each branch, all of which are drafted in one pass of the target
AHEAD_LOOKAHEADS = (6,)


def trees(bench: LadderBench) -> None:
    """`tree_vs_chain_sync` and `overlap_tree_speedup`."""
    best_chain = best_sync_speedup(bench)
    config = pair({"tree": {"nodes": NODES}})
    variants = [Variant(f"tree of {NODES}, depth {depth}", depth, tree_theory(config, depth)) for depth in DEPTHS]
    with bench.services(tree=config) as services:
        plain, found = against_plain(bench, services["tree"], "trees", variants)
    best = max(speedup(plain, measured) for measured in found)
    bench.add("tree_speedup", best, EMULATED)
    bench.add("tree_vs_chain_sync", best / best_chain, EMULATED)
    config = pair({"tree": {"nodes": AHEAD_NODES}, "overlap": AHEAD})
    variants = [Variant(f"overlap, trees of {AHEAD_NODES}, depth {k}", k) for k in AHEAD_LOOKAHEADS]
    with bench.services(overlap_tree=config) as services:
        plain, found = against_plain(bench, services["overlap_tree"], "trees", variants)
    ahead = max(found, key=lambda measured: speedup(plain, measured))
    bench.add("overlap_tree_speedup", speedup(plain, ahead), EMULATED, speedups(plain, ahead))
    bench.add("overlap_tree_hit_rate", ahead.hit_rate or 0.0, EMULATED)


def tree_theory(config: Config, depth: int) -> float:
    """Of a synchronous tree of the configured size that holds the likeliest nodes."""
    draft, tree = config.tiers[0].emulation, config.speculation.tree
    assert draft is not None and tree is not None
    agreement, cost, hops = pair_costs(config)
    tokens = theory.tree_tokens(shares((agreement, *(draft.further_guesses or ()))), tree.nodes, depth)
    return tokens / (depth * cost + 1.0 + hops)

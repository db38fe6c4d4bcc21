"""The figures of `bench ladder`, section by section, and what this project asks of them."""

from __future__ import annotations

from cluster.bench.report import Goal

FIGURES: dict[str, tuple[str, ...]] = {
    "sync": ("sync_speedup", "sync_vs_theory", "sync_theory_error"),
    "overlap": ("overlap_speedup", "overlap_vs_best_sync", "overlap_hit_rate", "target_idle_share"),
    "trees": ("tree_vs_chain_sync", "overlap_tree_speedup"),
    "tiers": ("three_tier_vs_best_two", "controller_picks_three", "controller_picks_two"),
    "control": ("controller_vs_best_fixed", "controller_vs_plain", "recovery_rounds"),
    "cpu": ("cpu_overlap_vs_sync",),
    "blocks": ("block_vs_token_wise",),
    "plan": ("plan_knee", "plan_wall_s"),
}

GOALS = {
    "sync_theory_error": Goal(at_most=0.08),  # of the worst k, against E(a, k) / (k c + 1 + hops)
    "overlap_speedup": Goal(at_least=4.1),
    "overlap_vs_best_sync": Goal(at_least=1.2),
    "target_idle_share": Goal(at_most=0.2),
    "tree_vs_chain_sync": Goal(at_least=1.1),
    "overlap_tree_speedup": Goal(at_least=5.0),
    "three_tier_vs_best_two": Goal(at_least=1.15),
    "controller_picks_three": Goal(at_least=1.0),
    "controller_picks_two": Goal(at_least=1.0),
    "controller_vs_best_fixed": Goal(at_least=0.95),
    "controller_vs_plain": Goal(at_least=0.98),
    "recovery_rounds": Goal(at_most=20.0),
    "cpu_overlap_vs_sync": Goal(at_least=1.15),
    "block_vs_token_wise": Goal(at_least=1.0),
    "plan_wall_s": Goal(at_most=60.0),
}

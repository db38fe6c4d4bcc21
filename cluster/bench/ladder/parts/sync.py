"""The emulated pair, one stream, rounds that take turns: chains of several lengths against theory."""

from __future__ import annotations

from cluster.bench.ladder import theory
from cluster.bench.ladder.bench import EMULATED, LadderBench
from cluster.bench.ladder.configs import pair
from cluster.bench.ladder.measured import Variant, speedup
from cluster.bench.ladder.parts.pairs import against_plain, chain_theory, pair_costs


def sync(bench: LadderBench) -> None:
    """`sync_speedup` of each lookahead, and each against E(a, k) / (k c + 1 + hops)."""
    config = pair()
    _, cost, hops = pair_costs(config)
    variants = [Variant(f"chain, k = {k}", k, chain_theory(config, k)) for k in bench.settings.lookaheads]
    with bench.services(sync=config) as services:
        plain, found = against_plain(bench, services["sync"], "sync", variants)
    speedups: dict[str, float] = {}
    ratios: dict[str, float] = {}
    seen: dict[str, float] = {}  # against theory at the agreement of just these texts, without its sampling error
    for measured in found:
        k, expected = measured.variant.lookahead, measured.variant.theory
        assert k is not None and expected is not None
        speedups[str(k)] = speedup(plain, measured)
        ratios[str(k)] = speedups[str(k)] / expected
        if measured.agreement is not None:
            seen[str(k)] = speedups[str(k)] / theory.sync_speedup(measured.agreement, k, cost, hops)
    bench.best_sync_speedup = max(speedups.values())
    details = bench.findings.details
    for name, values in (
        ("sync_speedup", speedups), ("sync_vs_theory", ratios), ("sync_vs_theory_at_agreement_seen", seen),
    ):
        details[name] = {k: round(value, 4) for k, value in values.items()}
        bench.realms[name] = EMULATED
    bench.add("sync_theory_error", max(abs(ratio - 1) for ratio in ratios.values()), EMULATED)

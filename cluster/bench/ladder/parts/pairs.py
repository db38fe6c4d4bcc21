"""What the sections on the emulated pair share: its theory, and variants of one service against plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.bench.ladder import theory
from cluster.bench.ladder.bench import EMULATED, LadderBench, Row
from cluster.bench.ladder.configs import VOICE, pair
from cluster.bench.ladder.measured import Measured, Variant, speedup, speedups
from cluster.bench.ladder.through import PLAIN, learn_texts, take_turns
from cluster.bench.serve.service import Service
from cluster.config import Config

HOPS = 4  # of a synchronous round: to the drafter and back, to the target and back
SYNC_LOOKAHEAD = 8  # compared with when the section `sync` has not found the best one


def chain_theory(config: Config, lookahead: int) -> float:
    """Of synchronous chains of an emulated pair, every hop of a round counted and none of plain decoding."""
    agreement, cost, hops = pair_costs(config)
    return theory.sync_speedup(agreement, lookahead, cost, hops)


def pair_costs(config: Config) -> tuple[float, float, float]:
    """Agreement, a draft pass and all hops of a round, both in passes of the target."""
    draft, target = config.tiers[0].emulation, config.target.emulation
    assert draft is not None and target is not None and draft.agreement is not None
    return draft.agreement[0], draft.pass_s / target.pass_s, HOPS * target.hop_s / target.pass_s


def against_plain(
    bench: LadderBench, service: Service, section: str, variants: Sequence[Variant], num_prompts: int | None = None,
) -> tuple[Measured, list[Measured]]:
    """Plain decoding and all variants through one service, taking turns; a row of the section for each."""
    settings = bench.settings
    num_prompts = num_prompts or settings.num_prompts
    texts = learn_texts(bench, service, VOICE, num_prompts, settings.num_tokens)
    asked = [(service, variant, settings.num_tokens) for variant in variants]
    asked.append((service, PLAIN, min(settings.num_tokens, settings.plain_tokens)))
    *found, plain = take_turns(bench, texts, asked, num_prompts)
    for measured in found:
        variant = measured.variant
        bench.rows.append(Row(section, EMULATED, variant.name, speedup(plain, measured), variant.theory, measured))
        name = f"{section}: {variant.name}"
        bench.findings.spreads[name] = speedups(plain, measured)
    return plain, found


def best_sync_speedup(bench: LadderBench) -> float:
    """Of the best synchronous chain; measured here when the section `sync` was not."""
    if bench.best_sync_speedup == 0.0:
        config = pair()
        variant = Variant(f"chain, k = {SYNC_LOOKAHEAD}", SYNC_LOOKAHEAD, chain_theory(config, SYNC_LOOKAHEAD))
        with bench.services(sync=config) as services:
            plain, (measured,) = against_plain(bench, services["sync"], "sync", [variant])
        bench.best_sync_speedup = speedup(plain, measured)
    return bench.best_sync_speedup

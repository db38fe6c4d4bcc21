"""Three emulated tiers against the best two of them, and whether the controller sees by itself which is better."""

from __future__ import annotations

from cluster.bench.ladder import theory
from cluster.bench.ladder.bench import EMULATED, SIMULATED, LadderBench
from cluster.bench.ladder.configs import (
    SMALL_TO_TARGET,
    medium_to_target,
    small_to_target,
    three_pools,
    three_tiers,
)
from cluster.bench.ladder.measured import Variant, speedup
from cluster.bench.ladder.parts.pairs import HOPS, against_plain
from cluster.config import Config, EmulationConfig
from cluster.coordinator.control.plan import ControlLimits
from cluster.simulation.load import Closed
from cluster.simulation.scenario import Controlled, PoolSpec, Scenario, simulate

NUM_PROMPTS = 3
SMALL_HOPS = 2  # of a round of a pair in one process
POOR = 0.05  # agreement of a small tier that saves the medium one less than it costs
SIMULATED_TOKENS = 600
LEAST_PASSES = 1.0  # per pass of the target; a tier with fewer was only tried
LADDER_PICK, MEDIUM_PICK, SMALL_PICK, PLAIN_PICK = "three tiers", "medium to target", "small to target", "plain"


def tiers(bench: LadderBench) -> None:
    """`three_tier_vs_best_two`, each at its best windows by theory, and `controller_picks`."""
    sizes = Sizes(three_tiers(1))
    two = max(
        _best(bench, "small_target", small_to_target(), sizes.small_to_target()),
        _best(bench, "medium_target", medium_to_target(), sizes.medium_to_target()),
    )
    small_lookahead, variants = sizes.three_tiers()
    three = _best(bench, "three_tiers", three_tiers(small_lookahead), variants)
    bench.add("two_tier_speedup", two, EMULATED)
    bench.add("three_tier_speedup", three, EMULATED)
    bench.add("three_tier_vs_best_two", three / two, EMULATED)
    bench.findings.details["three_tier_vs_best_two_theory"] = round(sizes.theory_gain(), 4)
    served = _served_pick(bench)
    rich, poor = simulated_pick(three_pools()), simulated_pick(three_pools(small_agreement=POOR))
    bench.findings.details["controller_picks"] = {
        "three pools": served, "three pools, simulated": rich, f"small tier right in {POOR:.0%}, simulated": poor,
    }
    bench.realms["controller_picks"] = EMULATED
    bench.add("controller_picks_three", float(served == rich == LADDER_PICK), EMULATED)
    bench.add("controller_picks_two", float(poor == MEDIUM_PICK), SIMULATED)


class Sizes:
    """The costs of an emulated ladder in passes of the target, and the windows that theory calls best for them."""

    def __init__(self, config: Config) -> None:
        self._small, self._medium, target = (_emulation(config, tier) for tier in range(3))
        self._small_cost = self._small.pass_s / target.pass_s
        self._medium_cost = self._medium.pass_s / target.pass_s
        self._hop = target.hop_s / target.pass_s

    def small_to_target(self) -> list[Variant]:
        """The best one, in one process."""
        found, k = theory.best_sync(SMALL_TO_TARGET, self._small_cost, SMALL_HOPS * self._hop)
        return [Variant(f"small to target, k = {k}", k, found)]

    def medium_to_target(self) -> list[Variant]:
        """The best one, over four hops."""
        found, k = theory.best_sync(_agreement(self._medium), self._medium_cost, HOPS * self._hop)
        return [Variant(f"medium to target, k = {k}", k, found)]

    def three_tiers(self) -> tuple[int, list[Variant]]:
        """What the small tier drafts at a time, and the best window of the medium one."""
        found, size, lookahead = theory.best_three_tier(*self._three())
        return lookahead, [Variant(f"three tiers, {size} by {lookahead} each", size, found)]

    def theory_gain(self) -> float:
        """Of three tiers over the better two, all at their best."""
        two = max(variant.theory or 0.0 for variant in (*self.small_to_target(), *self.medium_to_target()))
        return theory.best_three_tier(*self._three())[0] / two

    def _three(self) -> tuple[float, float, float, float, float]:
        return (
            _agreement(self._small), _agreement(self._medium), self._small_cost, self._medium_cost, HOPS * self._hop,
        )


def simulated_pick(config: Config) -> str:
    """What the controller of an emulated ladder of three pools settles on in simulated time, with one stream."""
    specs = config.model_specs()
    pools = [
        PoolSpec(tier.name, spec.emulation) for tier, spec in zip(config.tiers, specs, strict=True)
        if spec.emulation is not None
    ]
    limits = ControlLimits(num_tiers=3, max_lookahead=config.speculation.max_lookahead)
    outcome = simulate(Scenario(
        tuple(pools), Closed(2, 1), Controlled(limits), windows=(config.tiers[1].window,), num_tokens=SIMULATED_TOKENS,
    ))
    small, medium, target = (
        sum(len(replica.passes) for replica in outcome.replicas if replica.tier == tier) for tier in range(3)
    )
    return pick(small / target, medium / target)


def pick(small: float, medium: float) -> str:
    """Which of three tiers were mostly used, by the passes of the lower two per pass of the target."""
    if small < LEAST_PASSES:
        return PLAIN_PICK if medium < LEAST_PASSES else MEDIUM_PICK
    return SMALL_PICK if medium < LEAST_PASSES else LADDER_PICK


def _best(bench: LadderBench, name: str, config: Config, variants: list[Variant]) -> float:
    """The best speedup of these variants, through one service."""
    num_prompts = min(NUM_PROMPTS, bench.settings.num_prompts)
    with bench.services(**{name: config}) as services:
        plain, found = against_plain(bench, services[name], "tiers", variants, num_prompts)
    return max(speedup(plain, measured) for measured in found)


def _served_pick(bench: LadderBench) -> str:
    """What the controller of a service with three pools settles on, by the time that each pool spent in passes."""
    config = three_pools()
    with bench.services(three_pools=config) as services:
        _, (measured,) = against_plain(
            bench, services["three_pools"], "tiers", [Variant("three pools, controlled", None)],
            min(NUM_PROMPTS, bench.settings.num_prompts),
        )
    small, medium, target = (
        measured.busy[tier.name] / _emulation(config, index).pass_s for index, tier in enumerate(config.tiers)
    )
    return pick(small / target, medium / target)


def _emulation(config: Config, tier: int) -> EmulationConfig:
    found = config.tiers[tier].emulation
    assert found is not None
    return found


def _agreement(emulation: EmulationConfig) -> float:
    assert emulation.agreement is not None
    return emulation.agreement[0]

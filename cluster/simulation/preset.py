"""A 70B target and a 7B draft on emulated GPUs, the pair that plans start from."""

from __future__ import annotations

from actors.spec import EmulationSpec, Voice
from cluster.coordinator.settings import CoordinatorSettings, OverlapSettings
from cluster.simulation.load import Closed, Load
from cluster.simulation.scenario import DRAFT_TIMEOUT_S, FixedLookahead, Policy, PoolSpec, Scenario

SIZES = (1, 2, 4, 8, 16)
NUM_SEQUENCES = 2_000
NUM_STREAMS = 128
OVERLAP = OverlapSettings(num_branches=8, num_guesses=2, num_tokens=8)


def large_pair(
    load: Load | None = None, policy: Policy | None = None, *, drafters: int = 4, targets: int = 8,
    agreement: float = 0.85, further_guesses: tuple[float, ...] = (0.5,), hop_s: float = 0.002, num_tokens: int = 24,
    seed: int = 0,
    overlap: OverlapSettings | None = None,
) -> Scenario:
    """Target pass 71.4 ms, flat to 64 rows; draft pass 4.1 ms, flat to 24; a row more costs its share of those."""
    target = Voice("target", seed)
    draft = Voice("draft", seed, (agreement,), further_guesses)
    return Scenario(
        tiers=(
            PoolSpec("draft", EmulationSpec((draft, target), 0.0041, 24, 0.0041 / 24, hop_s), drafters),
            PoolSpec("target", EmulationSpec((target,), 0.0714, 64, 0.0714 / 64, hop_s), targets),
        ),
        load=load or Closed(NUM_SEQUENCES, NUM_STREAMS), policy=policy or FixedLookahead(4), num_tokens=num_tokens,
        seed=seed, settings=CoordinatorSettings(draft_timeout_s=DRAFT_TIMEOUT_S, overlap=overlap),
    )

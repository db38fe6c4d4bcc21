"""Whether drafting will pay: the controller's own goodput model over what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.coordinator.control.costs import PassCurve
from cluster.coordinator.control.goodput import Round, Station, chain_rates

PAYS = 1.05  # less is within the noise of what was measured
LOADS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds at one stream."""

    target: PassCurve
    draft_s: float  # of a draft, whatever its length
    draft_token_s: float  # of each of its tokens
    plain_overhead_s: float  # of a round, beside passes
    draft_overhead_s: float
    hop_s: float = 0.0  # of each call to a pool, and of each answer
    has_draft_pool: bool = True  # else a draft costs no calls of its own


@dataclass(frozen=True, slots=True)
class Forecast:
    """The best lookahead at some load."""

    k: int  # 0: none pays
    speedup: float  # over plain decoding at the same load; 1 for k = 0
    by_k: tuple[float, ...]  # entry k: speed-up of drafting k tokens

    @property
    def pays(self) -> bool:
        """Whether drafting is worth it."""
        return self.k > 0 and self.speedup >= PAYS


def forecast(costs: Costs, accept: Sequence[float], num_streams: int = 1) -> Forecast:
    """The k of `chain_rates` with the most tokens per second.

    With several streams their rows share each pass, the target's by its measured curve. The drafter's passes are taken
    to grow with their rows as the target's do.
    """
    target = Station(costs.target, float(num_streams))
    grown = target.seconds(1) / costs.target.seconds(1)
    around = Round(
        plain_s=costs.plain_overhead_s + 2 * costs.hop_s,
        draft_s=costs.draft_overhead_s + (4 if costs.has_draft_pool else 2) * costs.hop_s,
        plain_wait=0.0, draft_wait=0.0,
    )
    seconds = [around.plain_seconds(target.seconds(1))]
    for k in range(1, len(accept) + 1):
        below_s = grown * (costs.draft_s + k * costs.draft_token_s)
        seconds.append(around.draft_seconds(below_s, target.seconds(k + 1)))
    rates = chain_rates(accept, seconds)
    by_k = tuple(rate / rates[0] for rate in rates)
    k = max(range(len(by_k)), key=by_k.__getitem__)
    return Forecast(k, by_k[k], by_k)


def pays_up_to(costs: Costs, accept: Sequence[float]) -> int:
    """The most streams, of `LOADS`, up to which drafting pays; 0: not even for one."""
    most = 0
    for load in LOADS:
        if not forecast(costs, accept, load).pays:
            break
        most = load
    return most

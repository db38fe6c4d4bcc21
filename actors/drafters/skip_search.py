"""Which layers to leave out: a search by measured agreement (Draft & Verify, 2309.08168, section 3.2, and SWIFT,
2410.06916, search by Bayesian and random proposals; this one is greedy with swaps, so that it is repeatable).

Pure: what a set is worth is measured by the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LONGEST = 16  # tokens of the drafts that are thought of
_CANDIDATES = 4  # tried at each step: the layers that are missed least alone

Skip = frozenset[int]


@dataclass(frozen=True, slots=True)
class Found:
    """A set of layers to leave out."""

    skip: tuple[int, ...]  # ascending, 0: the first
    agreement: float  # share of tokens that are the whole model's
    speed_up: float  # expected, with the best lookahead; below 1 drafting does not pay
    num_evaluations: int


def speed_up(agreement: float, cost: float) -> float:
    """Tokens per time with the best lookahead, against one token per whole pass (Leviathan et al., 2211.17192, 3.4).

    `cost`: of a draft pass, beside a whole one, which verifies any draft in the same time.
    """
    best, expected, reach = 0.0, 1.0, 1.0
    for lookahead in range(1, LONGEST + 1):
        reach *= agreement
        expected += reach
        best = max(best, expected / (lookahead * cost + 1.0))
    return best


def search(
    num_layers: int, agreement: Callable[[Skip], float], cost: Callable[[int], float], num_evaluations: int
) -> Found:
    """The best set found with at most `num_evaluations` calls of `agreement`; `cost` is told how many layers run."""
    known: dict[Skip, float] = {}

    def is_spent() -> bool:
        return len(known) >= num_evaluations

    def gain(skip: Skip) -> float:
        return speed_up(known[skip], cost(num_layers - len(skip)))

    def measure(skip: Skip) -> bool:
        """Whether it is known now: it was, or the budget allowed it."""
        if skip not in known and not is_spent():
            known[skip] = agreement(skip)
        return skip in known

    for layer in range(num_layers):
        measure(frozenset((layer,)))
    ranking = sorted((layer for skip in known for layer in skip), key=lambda n: (-known[frozenset((n,))], n))
    current: Skip = frozenset()
    best = max(known, key=lambda skip: (gain(skip), sorted(skip)))
    hopeful = True  # were all layers left out but one, the agreement that is left would still pay
    while len(current) < num_layers - 1 and hopeful and not is_spent():
        tried = [current | {layer} for layer in ranking if layer not in current][:_CANDIDATES]
        tried = [skip for skip in tried if measure(skip)]
        if not tried:
            break
        current = max(tried, key=lambda skip: known[skip])
        best = current if gain(current) > gain(best) else best
        hopeful = speed_up(known[current], cost(1)) > gain(best)
    while (better := _swapped(best, ranking, measure, gain)) is not None:
        best = better
    return Found(tuple(sorted(best)), known[best], gain(best), len(known))


def _swapped(
    best: Skip, ranking: list[int], measure: Callable[[Skip], bool], gain: Callable[[Skip], float]
) -> Skip | None:
    """A better set that has one layer in place of another, or one more or less; None: none is, or can be measured."""
    others = [layer for layer in ranking if layer not in best]
    for dropped in [None, *reversed([layer for layer in ranking if layer in best])]:
        for taken in [None, *others]:
            skip = (best - {dropped}) | ({taken} if taken is not None else set())
            if skip in (best, frozenset()) or len(skip) >= len(ranking):
                continue
            if not measure(skip):
                return None
            if gain(skip) > gain(best):
                return skip
    return None

"""One way to spend a round, and the search for the best one.

A choice is evaluated by the goodput model of its kind: chain, tree, overlapped chain, or cascade.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from cluster.coordinator.control.ahead import AheadChoice, best_ahead
from cluster.coordinator.control.cascade import block_rate, collected, proposed, rounded
from cluster.coordinator.control.goodput import (
    Round,
    Station,
    chain_rates,
    static_tree_tokens,
    tree_rate,
    tree_table,
)
from cluster.coordinator.control.plan import ControlLimits, TreeKind
from cluster.coordinator.control.replica import Table

SAME = 1.015
FEWER = 1.03
KS = (1, 2, 3, 4, 6, 8, 12, 16)
WINDOWS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24)
TREE_NODES = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
TREE_DEPTHS = (2, 3, 4, 5, 6, 8, 10, 12)
TREE_GRAIN = 0.05  # acceptance is rounded to it in the tables of trees
OTHER_CHILD = 0.4  # a further child is right in this part of the cases in which its elder siblings are wrong
STATIC_WIDTHS = ((2,), (3,), (2, 2), (3, 2), (4, 2), (2, 2, 2), (3, 2, 2), (2, 1), (3, 1))  # then 1 per level


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do, with the tokens per second that the model expects."""

    rungs: tuple[int, ...] = ()
    k: int = 0
    windows: tuple[int, ...] = ()
    num_nodes: int = 0  # of a tree; 0: a chain
    widths: tuple[int, ...] = ()  # of a static tree
    ahead: AheadChoice | None = None
    rate: float = 0.0
    seconds: float = 0.0  # of a round, by the model alone; 0: a chain's, whose rounds are measured one by one
    tokens: float = 0.0  # of a tree, per round

    @property
    def rows(self) -> int:
        """Rows that it puts into the target's pass, about."""
        if self.ahead is not None:
            return 1 + max(self.k, self.ahead.depth)
        if self.windows:
            return 1 + self.windows[-1] + (self.k if len(self.windows) == 1 else self.windows[-2]) // 2
        return 1 + (self.num_nodes or self.k)

    @property
    def longest(self) -> int:
        """Tokens of the longest draft or window."""
        return max(self.k, self.ahead.depth if self.ahead is not None else 0, *self.windows, 0)

    @property
    def is_chain(self) -> bool:
        """One rung, nothing branches, nothing overlaps; or plain."""
        return not (self.windows or self.num_nodes or self.ahead)

    @property
    def kind(self) -> str:
        """What it has in common with others whose rounds take as long as it does, compared with the model."""
        if self.ahead is not None:
            return "ahead"
        return f"cascade {self.rungs}" if self.windows else "tree" if self.num_nodes else "chain"

    def is_like(self, other: Choice) -> bool:
        """Of the same kind, on the same rungs."""
        return (
            self.rungs == other.rungs and self.is_chain == other.is_chain
            and (self.ahead is None) == (other.ahead is None) and (self.num_nodes > 0) == (other.num_nodes > 0)
        )


@dataclass(frozen=True, slots=True)
class Scene:
    """One sequence's situation, for a search."""

    limits: ControlLimits
    tiers: tuple[int, ...]  # lower tiers with a lease, ascending
    target: Station  # while all draft
    station: Callable[[int], Station]  # of a lower tier
    accept: Callable[[int, int], Sequence[float]]  # of a pair (lower, upper)
    costs: Callable[[tuple[int, ...]], Round]  # around the passes, by rungs
    table: Callable[[int], Table]  # of rounds of chains, by lower tier
    doubt: Callable[[str, int], float]  # of a kind, at about k tokens: measured / expected seconds
    max_k: int  # at least 1
    ahead_trust: float
    tree_trust: float
    common_k: int = 0  # of the chains on the same target; 0: none

    @property
    def top(self) -> int:
        """The target's tier."""
        return self.limits.num_tiers - 1


def best_chain(scene: Scene, now: Choice) -> tuple[Choice, float, float]:
    """The best chain of one rung or plain, the rate of plain, and the rate of `now` if it is such a chain (else 0).

    Where the neighbours' k is as good within `SAME`, it is taken: sequences whose drafts are equally long do not wait
    for each other, and noise in one sequence's acceptance moves nothing.
    """
    best = Choice(rate=1.0 / scene.table(scene.tiers[0]).seconds[0])
    plain, current = best.rate, best.rate if not now.rungs else 0.0
    for tier in scene.tiers:
        rates = chain_rates(scene.accept(tier, scene.top), scene.table(tier).seconds[: scene.max_k + 1])
        k = max(range(1, len(rates)), key=rates.__getitem__)
        _, _, knot = scene.target.curve.terms()
        while k > 1 and scene.target.crowd * (k + 1) > knot and rates[k - 1] * FEWER >= max(rates):
            k -= 1  # where rows have a price, fewer of them are the safer choice
        if scene.common_k < len(rates) and rates[scene.common_k] * SAME >= rates[k] and scene.common_k:
            k = scene.common_k
        if rates[k] > best.rate:
            best = Choice((tier,), k, rate=rates[k])
        if now.is_chain and now.rungs == (tier,):
            current = rates[now.k] if now.k < len(rates) else 0.0
    return best, plain, current


def best_of_all(scene: Scene, chain: Choice) -> Choice:
    """The best of `chain` and every kind that the limits allow."""
    best = chain
    for model in (*_cascades(scene), *_trees(scene), *_overlaps(scene, chain)):
        found = replace(model, rate=model.rate / scene.doubt(model.kind, model.rows - 1))
        if found.rate > best.rate:
            best = found
    return best


def _overlaps(scene: Scene, chain: Choice) -> list[Choice]:
    if not scene.limits.max_branches or 0 not in scene.tiers:
        return []
    found = best_ahead(
        scene.accept(0, scene.top), scene.station(0), scene.target, scene.costs((0,)), scene.max_k,
        scene.limits.max_branches, scene.limits.max_guesses, scene.ahead_trust,
        chain.k if chain.rungs == (0,) else 1,
    )
    if found is None:
        return []
    return [Choice((0,), max(1, found.k_miss), ahead=found, rate=found.rate, seconds=found.seconds)]


def _trees(scene: Scene) -> list[Choice]:
    kind = scene.limits.trees
    if kind is TreeKind.NONE or 0 not in scene.tiers:
        return []
    draft, target, costs = scene.station(0), scene.target, scene.costs((0,))
    accept = scene.accept(0, scene.top)
    first = round(sum(accept) / len(accept) / TREE_GRAIN) * TREE_GRAIN
    most, deepest = scene.limits.max_tree_nodes, min(scene.max_k, TREE_DEPTHS[-1])
    choices = []
    if kind is TreeKind.STATIC:
        for head in STATIC_WIDTHS:
            for depth in TREE_DEPTHS:
                if depth < len(head) or depth > deepest:
                    continue
                widths = (*head, *(1,) * (depth - len(head)))
                nodes, level = 0, 1
                for width in widths:
                    level *= width
                    nodes += level
                if nodes <= most:
                    tokens = static_tree_tokens(first, OTHER_CHILD, widths)
                    choices.append(Choice((0,), depth, num_nodes=nodes, widths=widths, tokens=tokens))
    else:
        table = tree_table(first, OTHER_CHILD, min(most, TREE_NODES[-1]), TREE_DEPTHS[-1])
        choices = [
            Choice((0,), depth, num_nodes=nodes, tokens=table[nodes][depth])
            for nodes in TREE_NODES if nodes <= most
            for depth in TREE_DEPTHS if depth <= min(deepest, nodes)
        ]
    rated = []
    for c in choices:
        tokens = scene.tree_trust * c.tokens
        rate = tree_rate(tokens, c.num_nodes, c.k, draft, target, costs)
        rated.append(replace(c, rate=rate, seconds=tokens / rate if rate else math.inf))
    return rated


def _cascades(scene: Scene) -> list[Choice]:
    """The best cascade on each set of two or more rungs, by descent along one length after the other."""
    choices = []
    for size in range(2, len(scene.tiers) + 1):
        for rungs in combinations(scene.tiers, size):
            accept = [rounded(scene.accept(a, b)) for a, b in zip(rungs, rungs[1:], strict=False)]
            last = scene.accept(rungs[-1], scene.top)
            stations = [scene.station(tier) for tier in rungs]
            costs = scene.costs(rungs)

            def rate(
                lengths: Sequence[int], accept: list[tuple[float, ...]] = accept, last: Sequence[float] = last,
                stations: list[Station] = stations, costs: Round = costs,
            ) -> tuple[float, float]:
                block = proposed(lengths[0], lengths[0] * stations[0].seconds(1.0))
                for a, window, station in zip(accept, lengths[1:], stations[1:], strict=True):
                    block = collected(block, a, window, station, costs.middle_s)
                return block_rate(block, last, scene.target, costs)

            lengths = [min(4, scene.max_k)] * size
            best = rate(lengths)
            for _ in range(2):
                for i in reversed(range(size)):
                    for length in KS if i == 0 else WINDOWS:
                        if length <= scene.max_k:
                            tried = [*lengths[:i], length, *lengths[i + 1 :]]
                            found = rate(tried)
                            if found > best:
                                best, lengths = found, tried
            choices.append(Choice(rungs, lengths[0], tuple(lengths[1:]), rate=best[0], seconds=best[1]))
    return choices

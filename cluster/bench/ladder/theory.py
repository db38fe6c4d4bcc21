"""What speculation should bring, from acceptance and cost alone: printed beside what was measured.

All costs are in passes of the target; drafts are chains, and each token of one is right with the same chance, whatever
came before (Leviathan et al., 2211.17192).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


def expected_tokens(agreement: float, lookahead: int) -> float:
    """E(a, k): tokens that a round commits, its accepted draft tokens and one more (Leviathan et al., eq. 1)."""
    if agreement == 1.0:
        return lookahead + 1.0
    return float((1.0 - agreement ** (lookahead + 1)) / (1.0 - agreement))


def sync_speedup(agreement: float, lookahead: int, draft_cost: float, hops_cost: float = 0.0) -> float:
    """Against the target alone: E(a, k) / (k c + 1 + hops). `hops_cost`: all hops of a round together."""
    return expected_tokens(agreement, lookahead) / (lookahead * draft_cost + 1.0 + hops_cost)


def best_sync(agreement: float, draft_cost: float, hops_cost: float = 0.0, most: int = 64) -> tuple[float, int]:
    """The best synchronous speedup and its k."""
    return max((sync_speedup(agreement, k, draft_cost, hops_cost), k) for k in range(1, most + 1))


def overlap_speedup(
    agreement: float, lookahead: int, draft_cost: float, hit_rate: float, missed: int, hops_cost: float = 0.0,
) -> float:
    """Rounds that overlap: after a hit a draft of `lookahead` is there, after a miss one of `missed` is waited for.

    `hit_rate`: share of rounds whose outcome was drafted for. `hops_cost` is paid after a miss only. Drafting itself
    must fit into a pass of the target: lookahead * draft_cost <= 1, all branches in one batch.
    """
    tokens = hit_rate * expected_tokens(agreement, lookahead) + (1.0 - hit_rate) * expected_tokens(agreement, missed)
    return tokens / (1.0 + (1.0 - hit_rate) * (missed * draft_cost + hops_cost))


def chain_hit_rate(agreement: float, second_guess: float, lookahead: int) -> float:
    """Share of outcomes covered by branches for every accepted length, each with one guess of the next token.

    After a rejection the guess is the drafter's second best, after a full accept its best.
    """
    full = agreement**lookahead
    return full * agreement + (1.0 - full) * second_guess


@dataclass(frozen=True, slots=True)
class Window:
    """What a middle tier goes through until it has a window for the tier above."""

    passes: float  # of the middle tier, mean
    lengths: dict[int, float]  # tokens handed up -> chance: the last pass may bring more than were missing


def window(small: float, size: int, lookahead: int) -> Window:
    """A middle tier that collects verdicts on drafts of `lookahead` until it has `size` tokens.

    `small`: agreement of the tier below with this one.
    """
    gains = {n + 1: small**n * (1.0 - small if n < lookahead else 1.0) for n in range(lookahead + 1)}
    reached = {0: 1.0}  # tokens -> chance that a pass ends there
    for have in range(size):
        for gain, chance in gains.items():
            reached[have + gain] = reached.get(have + gain, 0.0) + reached.get(have, 0.0) * chance
    passes = sum(chance for have, chance in reached.items() if have < size)
    return Window(passes, {have: chance for have, chance in reached.items() if have >= size})


def three_tier_tokens(small: float, medium: float, size: int, lookahead: int) -> float:
    """Tokens that a target pass commits over a cascade; see `three_tier_speedup`."""
    lengths = window(small, size, lookahead).lengths
    return sum(chance * expected_tokens(medium, length) for length, chance in lengths.items())


def three_tier_speedup(
    small: float, medium: float, size: int, lookahead: int, small_cost: float, medium_cost: float,
    hops_cost: float = 0.0, inner_hops_cost: float = 0.0,
) -> float:
    """A synchronous cascade: small drafts `lookahead` tokens a time until medium has `size` for the target.

    `small`: agreement of the small tier with the medium, `medium`: of the medium with the target. `hops_cost`: per
    pass of the target; `inner_hops_cost`: per pass of the medium (0 when the small tier runs in its process).
    """
    each = lookahead * small_cost + medium_cost + inner_hops_cost
    tokens = three_tier_tokens(small, medium, size, lookahead)
    return tokens / (1.0 + hops_cost + window(small, size, lookahead).passes * each)


def best_three_tier(
    small: float, medium: float, small_cost: float, medium_cost: float, hops_cost: float = 0.0,
    inner_hops_cost: float = 0.0, most_window: int = 24, most_lookahead: int = 8,
) -> tuple[float, int, int]:
    """The best speedup of a cascade, with its window and lookahead."""
    return max(
        (three_tier_speedup(small, medium, size, k, small_cost, medium_cost, hops_cost, inner_hops_cost), size, k)
        for size in range(1, most_window + 1) for k in range(1, most_lookahead + 1)
    )


def tree_tokens(chances: Sequence[float], nodes: int, depth: int) -> float:
    """Tokens that a round with the best tree of so many nodes commits, none deeper than `depth`.

    A node has a child for every rank, which is the right one in that rank's share of cases. The best tree holds the
    nodes that are likeliest to be reached and right, whose chances add up to what is accepted.
    """
    heap = [(-chance, 1) for chance in chances if depth > 0]
    heapq.heapify(heap)
    tokens = 1.0
    for _ in range(nodes):
        if not heap:
            break
        reached, level = heapq.heappop(heap)
        tokens -= reached
        if level < depth:
            for chance in chances:
                heapq.heappush(heap, (reached * chance, level + 1))
    return tokens

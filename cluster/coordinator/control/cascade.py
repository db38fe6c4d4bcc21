"""The goodput of a ladder of any depth: which tiers to use, and how much each of them collects.

A rung collects verdicts of its own until it has its window, so what it hands up is a block of random length: a
renewal process, computed exactly. (Sequential cascades: Spector & Re 2308.04623; Chen et al. 2312.11462.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cluster.coordinator.control.goodput import Round, Station

GRAIN = 0.02  # acceptance is rounded to it, so that sequences share results


@dataclass(frozen=True, slots=True)
class Block:
    """What a rung hands up: the law of its length, and the seconds it takes."""

    lengths: tuple[float, ...]  # [longest + 1] probability of each length
    seconds: float


def proposed(k: int, seconds: float) -> Block:
    """The lowest rung's: always k tokens."""
    return Block((*(0.0,) * k, 1.0), seconds)


def collected(below: Block, accept: tuple[float, ...], window: int, rung: Station, hop_s: float) -> Block:
    """What a middle tier hands up: verdicts on blocks from below, until it has `window` tokens."""
    num_verdicts, lengths = _renewed(below.lengths, accept, window)
    mean_rows = 1.0 + sum(n * p for n, p in enumerate(below.lengths))
    return Block(lengths, num_verdicts * (below.seconds + hop_s + rung.seconds(mean_rows)))


def block_rate(below: Block, accept: Sequence[float], target: Station, costs: Round) -> tuple[float, float]:
    """Tokens per second when the target checks such blocks, and seconds of a round."""
    tokens = seconds = 0.0
    for length, chance in enumerate(below.lengths):
        if chance > 0:
            seconds += chance * target.seconds(length + 1.0)
    survival, tail = 1.0, 1.0
    for n, chance in enumerate(below.lengths):
        tokens += survival * tail  # position n is reached when the block is at least n long
        tail -= chance
        survival *= accept[min(n, len(accept) - 1)]
    round_s = costs.draft_seconds(below.seconds, seconds)
    return tokens / round_s, round_s


def rounded(accept: Sequence[float]) -> tuple[float, ...]:
    """Acceptance by position, on the grain of this module's caches."""
    return tuple([round(a / GRAIN) * GRAIN for a in accept])


@lru_cache(maxsize=8192)
def _renewed(
    lengths: tuple[float, ...], accept: tuple[float, ...], window: int
) -> tuple[float, tuple[float, ...]]:
    """Mean number of verdicts until there are `window` tokens, and the law of how many there are then."""
    verdict = [0.0] * (len(lengths) + 1)  # the law of a verdict's length, its own token included
    for n, chance in enumerate(lengths):
        survival = chance
        for i in range(n):
            rate = accept[min(i, len(accept) - 1)]
            verdict[i + 1] += survival * (1 - rate)
            survival *= rate
        verdict[n + 1] += survival
    at = [1.0] + [0.0] * (window + len(lengths))
    num_verdicts = 0.0
    for have in range(window):
        num_verdicts += at[have]
        for more in range(1, len(verdict)):
            at[have + more] += at[have] * verdict[more]
    return num_verdicts, (*(0.0,) * window, *at[window:])

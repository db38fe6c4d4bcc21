"""The goodput of overlapped rounds: how many outcomes to draft for, and how far.

While the target verifies, the draft side drafts for the likeliest outcomes (accepted tokens, next token). A hit costs
neither drafting nor a hop; after a miss a draft of `k_miss` tokens is made and waited for (0: a plain step). With
h_L and h_m the chances of a hit after a round of L and of k_miss drafted tokens, the share of rounds that begin with
a hit is h_m / (1 - h_L + h_m), and (SSD, 2603.03251, in the form of a verifier that picks by itself)

    rate = (share * tokens(L) + (1 - share) * tokens(k_miss)) / (share * t_hit + (1 - share) * t_miss).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cluster.coordinator.control.goodput import Round, Station

SECOND_GUESS = 0.5  # each further guess is right in this part of the cases in which those before it were wrong
IN_TIME = 0.95  # of the verify pass may be used: what comes later is of no use
BRANCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class AheadChoice:
    """The best way to overlap."""

    rate: float  # tokens per second
    seconds: float  # of a round, mean
    num_branches: int
    num_guesses: int
    depth: int  # drafted tokens of each branch
    time_s: float
    k_miss: int
    hit_rate: float  # predicted chance of a hit, over all rounds


@lru_cache(maxsize=8192)
def coverage(percent: int, k: int, num_guesses: int, num_branches: int) -> float:
    """Chance that the outcome of verifying k tokens is among the `num_branches` likeliest, at acceptance percent/100.

    After a rejection the guesses leave out the rejected token.
    """
    rate = percent / 100
    chances = []
    for n in range(k + 1):
        reached = rate**n * (1.0 if n == k else 1 - rate)
        left = 1.0
        for g in range(num_guesses):
            right = left * (rate if n == k and g == 0 else SECOND_GUESS)
            chances.append(reached * right)
            left -= right
    chances.sort(reverse=True)
    return sum(chances[:num_branches])


def best_ahead(
    accept: Sequence[float], draft: Station, target: Station, costs: Round, max_k: int, max_branches: int,
    max_guesses: int, trust: float, k_sync: int,
) -> AheadChoice | None:
    """The best overlapped plan, or None when nothing can be drafted in the time of a pass.

    `trust`: hits seen / hits that `coverage` predicted. `k_sync`: the best draft that is waited for.
    """
    tokens = [1.0]
    survival = 1.0
    for a in accept[:max_k]:
        survival *= a
        tokens.append(tokens[-1] + survival)
    level = sum(accept[:max_k]) / max_k
    percent = round(100 * level)
    draft_s = draft.seconds(1.0)
    pass_s = target.seconds(1.0)
    best: AheadChoice | None = None
    for num_branches in BRANCHES:
        if num_branches > max_branches:
            break
        step_s = draft.seconds(num_branches)
        time_s = IN_TIME * pass_s - costs.switch_s
        longest = max_k if step_s * max_k <= time_s else int(time_s / step_s)
        if longest < 1:
            break
        for depth in {longest, max(1, 3 * longest // 4), max(1, longest // 2)}:
            hit_s = costs.switch_s + target.seconds(depth + 1.0)
            for num_guesses in range(1, min(max_guesses, num_branches) + 1):
                hit_deep = min(0.99, trust * coverage(percent, depth, num_guesses, num_branches))
                for k_miss in {0, k_sync // 2, k_sync, min(max_k, k_sync + 2)}:
                    hit_miss = min(0.99, trust * coverage(percent, k_miss, num_guesses, num_branches))
                    share = hit_miss / (1 - hit_deep + hit_miss)
                    if k_miss:
                        miss_s = costs.draft_seconds(k_miss * draft_s, target.seconds(k_miss + 1.0))
                    else:
                        miss_s = costs.plain_seconds(pass_s)
                    seconds = share * hit_s + (1 - share) * miss_s
                    rate = (share * tokens[depth] + (1 - share) * tokens[k_miss]) / seconds
                    if best is None or rate > best.rate:
                        best = AheadChoice(rate, seconds, num_branches, num_guesses, depth, time_s, k_miss, share)
    return best

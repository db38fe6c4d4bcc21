"""From a pool's load to a number of replicas: pure functions, without delays (`cluster.scaling.steady`) or bounds.

Serve's own rule, ongoing requests per replica, is blind to what runs out first here: a target's KV pages fill up with
few long sequences, and a lease of a draft says nothing of whether it is used, or comes in time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SLACK = 0.8  # fewer replicas must carry the load at this share of what they may, else they would soon be more again
FEW_ROUNDS = 20.0  # of a window: a share of fewer rounds says nothing


@dataclass(frozen=True, slots=True)
class Limits:
    """What a replica should carry at most."""

    capacity: int  # sequences that it holds at once
    target_load: float = 0.7  # share of `capacity`
    target_kv: float = 0.8  # share of its KV pages
    max_starved: float = 0.1  # drafts: share of the rounds that may go without one, or wait for it


@dataclass(frozen=True, slots=True)
class Load:
    """A pool at one moment; rounds are those of the last window."""

    num_replicas: int  # running, or on their way
    num_sequences: float = 0.0  # that hold a replica
    kv_used: float = 0.0  # shares of pages in use, added up over the replicas
    num_waiting: float = 0.0  # sequences that look for a place
    rounds: float = 0.0  # of all sequences
    wanted: float = 0.0  # rounds that wanted something of this pool
    starved: float = 0.0  # of these, the ones that went without it or waited for it


def wanted_targets(load: Load, limits: Limits) -> int:
    """Replicas of the target: as many as the sequences, or their pages, need."""
    return max(1, _fit(max(_places(load.num_sequences + load.num_waiting, limits), _pages(load, limits)), load))


def wanted_drafts(load: Load, limits: Limits) -> int:
    """Replicas of a pool below the target: what the sequences that use it need, more while rounds starve, else none."""
    if load.wanted <= 0:
        return 0
    used = min(1.0, load.wanted / load.rounds) if load.rounds > 0 else 1.0
    need = max(_places(used * load.num_sequences + load.num_waiting, limits), _pages(load, limits))
    fit, now = max(1, _fit(need, load)), load.num_replicas
    share = load.starved / load.wanted
    if load.wanted < FEW_ROUNDS or share <= limits.max_starved / 2:
        return fit
    if share <= limits.max_starved:
        return max(fit, now)  # enough, but no more than that
    return max(fit, now + max(1, math.floor(now * share)))


def _places(num_sequences: float, limits: Limits) -> float:
    return num_sequences / max(1.0, limits.target_load * limits.capacity)


def _pages(load: Load, limits: Limits) -> float:
    return load.kv_used / limits.target_kv


def _fit(need: float, load: Load) -> int:
    """Whole replicas for `need`, with hysteresis: not fewer unless the load would leave them some room."""
    up, down = math.ceil(need - 1e-9), math.ceil(need / SLACK - 1e-9)
    if up > load.num_replicas:
        return up
    return min(down, load.num_replicas)

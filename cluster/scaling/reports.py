"""What replicas and coordinators report to the autoscaler, and how it is read: Serve keeps a series of each figure.

Coordinators report as replicas of the ingress, since a pool that sleeps has nobody to report for it. Serve's policies
see their own deployment only, and all run in its controller: there the ingress's leaves what the pools' read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from actors.messages import ReplicaStats
from cluster.coordinator.demand import Demand

INTERVAL_S = 2.0  # between two reports of a replica
WINDOW_S = 10.0  # of the series that Serve keeps, and so of what "recently" means
STALE_S = 4 * INTERVAL_S  # a figure older than this is not known


class Point(Protocol):
    """One figure at one time (of Serve's `TimeSeries`)."""

    timestamp: float
    value: float


Series = Mapping[str, Mapping[Any, Sequence[Point]]]  # figure -> replica -> oldest first


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """What all coordinators recently wanted of one pool."""

    waiting: float = 0.0  # sequences that look for a place, now
    wanted: float = 0.0  # rounds of the window
    starved: float = 0.0


@dataclass(frozen=True, slots=True)
class Reported:
    """What all coordinators reported, by the place of the pool in the ladder."""

    at: float  # s since the epoch
    rounds: float = 0.0  # of the window
    pools: Mapping[int, PoolDemand] = field(default_factory=dict)


class Latest:
    """What was reported last, by application."""

    def __init__(self) -> None:
        self._reported: dict[str, Reported] = {}

    def put(self, application: str, reported: Reported) -> None:
        """Replaces what was there."""
        self._reported[application] = reported

    def get(self, application: str, now: float) -> Reported | None:
        """None: nobody has reported for a while."""
        reported = self._reported.get(application)
        return reported if reported is not None and now - reported.at <= STALE_S else None


latest = Latest()  # of the controller's process


def of_ingress(demand: Demand, waiting: Mapping[int, int]) -> dict[str, float]:
    """A coordinator's report; `waiting`: sequences that look for a place in each pool."""
    figures = {"rounds": float(demand.rounds)}
    for pool, number in waiting.items():
        figures[f"waiting.{pool}"] = float(number)
        figures[f"wanted.{pool}"] = float(demand.wanted[pool])
        figures[f"starved.{pool}"] = float(demand.starved[pool])
    return figures


def of_replica(num_sequences: int, stats: ReplicaStats | None) -> dict[str, float]:
    """A pool replica's report; `stats` None: its actors are being rebuilt."""
    used = 1 - stats.num_free_pages / stats.num_pages if stats is not None and stats.num_pages else 0.0
    return {"sequences": float(num_sequences), "kv_used": used}


def read_ingress(series: Series, now: float) -> Reported | None:
    """All coordinators together; None: none of them has reported twice by now."""
    if not any(len(points) > 1 and _is_fresh(points, now) for points in series.get("rounds", {}).values()):
        return None
    pools = sorted({int(name.rpartition(".")[2]) for name in series if "." in name})
    return Reported(now, _growth(series, "rounds", now), {
        pool: PoolDemand(
            total(series, f"waiting.{pool}", now), _growth(series, f"wanted.{pool}", now),
            _growth(series, f"starved.{pool}", now),
        ) for pool in pools
    })


def total(series: Series, name: str, now: float) -> float:
    """The latest figures of all replicas, added up."""
    return sum(points[-1].value for points in series.get(name, {}).values() if _is_fresh(points, now))


def num_fresh(series: Series, name: str, now: float) -> int:
    """Replicas that have reported a figure lately."""
    return sum(_is_fresh(points, now) for points in series.get(name, {}).values())


def _growth(series: Series, name: str, now: float) -> float:
    """By how much a count has grown in the window."""
    return sum(
        max(0.0, points[-1].value - points[0].value)
        for points in series.get(name, {}).values() if _is_fresh(points, now)
    )


def _is_fresh(points: Sequence[Point], now: float) -> bool:
    return bool(points) and now - points[-1].timestamp <= STALE_S

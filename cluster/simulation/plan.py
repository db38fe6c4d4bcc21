"""How many draft replicas a target pool is worth: one simulation per pool size, and the knee of the curve."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from cluster.bench.watch import Unwatched, Watcher
from cluster.simulation.knee import bend, smallest_within
from cluster.simulation.outcome import LoadFigures
from cluster.simulation.scenario import FixedLookahead, Scenario, simulate

KNEE_SHARE = 0.05
GC_THRESHOLDS = (100_000, 50, 50)  # of worker processes: almost all of their garbage is freed by reference counts
LABEL = "emulated devices in simulated time"  # on everything that is shown


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """One size of the draft pool."""

    replicas: int
    figures: LoadFigures
    speedup: float  # tokens/s over those of plain decoding with the same targets and load


@dataclass(frozen=True, slots=True)
class Plan:
    """Throughput and latency over the size of the draft pool. Estimates: emulated devices in simulated time."""

    points: tuple[PlanPoint, ...]  # by size
    plain: LoadFigures  # the targets alone
    knee: int  # the smallest pool within `KNEE_SHARE` of the best throughput
    bend: int | None  # the furthest above the chord (`cluster.simulation.knee.bend`)
    wall_s: float  # real seconds that planning took

    def as_json(self) -> dict[str, object]:
        """Plain JSON types."""
        return {
            "emulated": True, "label": LABEL, "knee": self.knee, "knee_share": KNEE_SHARE, "bend": self.bend,
            "wall_s": round(self.wall_s, 3), "plain": self.plain.as_json(),
            "points": [
                {"draft_replicas": point.replicas, "speedup": round(point.speedup, 4), **point.figures.as_json()}
                for point in self.points
            ],
        }


def plan(scenario: Scenario, sizes: Sequence[int], workers: int = 2, watcher: Watcher | None = None) -> Plan:
    """Simulate `scenario` with each of `sizes` replicas of its lowest tier, and without speculation.

    Scenarios travel to `workers` processes, so policies and loads must pickle; one worker: all runs in this process.
    """
    if len(scenario.tiers) < 2:
        raise ValueError("a plan sizes a draft pool: give the scenario at least two tiers")
    if not sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes):
        raise ValueError(f"draft pool sizes {tuple(sizes)}: give different sizes of at least 1 replica")
    began_s = time.monotonic()
    # The plain one first: it has the most rounds, so that the processes end at about the same time.
    jobs = [plainly(scenario), *(with_drafters(scenario, size) for size in sorted(sizes))]
    watcher = watcher or Unwatched()
    watcher.section(f"planning: {LABEL}", len(jobs))
    plain, *others = run_all(jobs, workers, watcher)
    points = tuple(
        PlanPoint(size, figures, figures.tokens_per_s / plain.tokens_per_s)
        for size, figures in zip(sorted(sizes), others, strict=True)
    )
    rates = [point.figures.tokens_per_s for point in points]
    return Plan(
        points, plain, smallest_within(sorted(sizes), rates, KNEE_SHARE), bend(sorted(sizes), rates),
        time.monotonic() - began_s,
    )


def plainly(scenario: Scenario) -> Scenario:
    """The target alone under the same load."""
    return replace(scenario, tiers=scenario.tiers[-1:], windows=(), policy=FixedLookahead(0))


def with_drafters(scenario: Scenario, size: int) -> Scenario:
    """The same with another number of replicas of the lowest tier."""
    return replace(scenario, tiers=(replace(scenario.tiers[0], replicas=size), *scenario.tiers[1:]))


def run_all(jobs: Sequence[Scenario], workers: int, watcher: Watcher) -> list[LoadFigures]:
    """The figures of each, in so many processes; 1: in this one."""
    return _in_processes(jobs, workers, watcher) if workers > 1 else _here(jobs, watcher)


def figures_of(scenario: Scenario) -> LoadFigures:
    """What a worker sends back: streams stay where they ran."""
    return simulate(scenario).figures()


def _here(jobs: Sequence[Scenario], watcher: Watcher) -> list[LoadFigures]:
    found: list[LoadFigures] = []
    for scenario in jobs:
        found.append(figures_of(scenario))
        watcher.run_done()
    return found


def _in_processes(jobs: Sequence[Scenario], workers: int, watcher: Watcher) -> list[LoadFigures]:
    # Spawned: a fork would copy the locks of whatever threads this process has.
    with ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=get_context("spawn"), initializer=gc.set_threshold, initargs=GC_THRESHOLDS,
    ) as pool:
        futures: list[Future[LoadFigures]] = [pool.submit(figures_of, scenario) for scenario in jobs]
        for _ in as_completed(futures):
            watcher.run_done()
        return [future.result() for future in futures]

"""What the goodput controller comes to in closed loop: against plain decoding and every fixed lookahead.

The real coordinator over an emulated 70B/7B pair in simulated time. Streams begin one after the other within a pass:
if all began at the same instant, plain streams would stay in step for ever and share every pass, which no network
grants them. Every fixed lookahead has the same arrivals, prompts and texts as the controller.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import Any

import numpy as np

from actors.spec import EmulationSpec, Voice
from cluster.bench.watch import Unwatched, Watcher
from cluster.coordinator.control.controller import Controller
from cluster.coordinator.control.plan import ControlLimits, RoundPlan, RoundReport
from cluster.coordinator.control.planner import Planner
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.settings import CoordinatorSettings
from cluster.coordinator.tier import Tier
from cluster.simulation.load import Closed, Scripted
from cluster.simulation.outcome import Outcome
from cluster.simulation.plan import GC_THRESHOLDS, LABEL
from cluster.simulation.preset import large_pair
from cluster.simulation.scenario import Controlled, FixedLookahead, Policy, PoolSpec, Scenario, simulate
from cluster.simulation.theory import chain_speedup

LOADS = (1, 4, 16, 64)
AGREEMENTS = (0.3, 0.5, 0.7, 0.85, 0.95)
LOOKAHEADS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
STAGGER_S = 0.15  # about two passes: who begins when is decided by nothing
TOKENS = 96  # of a sequence
TOKENS_BUSY = 64  # the same from `BUSY` streams on, where they take longest to simulate
BUSY = 64


@dataclass(frozen=True, slots=True)
class ControlPoint:
    """One load and agreement. Rates are tokens per second of all streams."""

    streams: int
    agreement: float
    controller: float
    fixed: dict[int, float]  # by lookahead, 0: plain

    @property
    def best(self) -> int:
        """The best fixed lookahead."""
        return max(self.fixed, key=self.fixed.__getitem__)

    @property
    def vs_best(self) -> float:
        """Controller / best fixed lookahead."""
        return self.controller / self.fixed[self.best]

    @property
    def vs_plain(self) -> float:
        """Controller / plain decoding."""
        return self.controller / self.fixed[0]


def point_scenario(
    streams: int, agreement: float, policy: Policy, sequences: int, *, gather_s: float = 0.0
) -> Scenario:
    """`streams` clients of one draft and one target replica, which send `sequences` requests each."""
    rng = np.random.default_rng(streams)
    first = sorted(rng.uniform(0.0, STAGGER_S, streams).tolist())
    load = Scripted((*first, *[STAGGER_S] * (streams * (sequences - 1))), streams)
    num_tokens = TOKENS if streams < BUSY else TOKENS_BUSY
    scenario = large_pair(load, policy, drafters=1, targets=1, agreement=agreement, num_tokens=num_tokens)
    return replace(scenario, tiers=tuple(replace(tier, gather_s=gather_s) for tier in scenario.tiers))


def sequences_of(streams: int) -> int:
    """Requests per stream: enough of them for acceptance to average out, and for the controller to settle."""
    return max(3, 48 // streams)


def rate_of(outcome: Outcome) -> float:
    """Tokens per second while all streams were busy; what the controller learns at first is part of it."""
    return outcome.figures().tokens_per_s


def rate(streams: int, agreement: float, lookahead: int | None, gather_s: float = 0.0) -> float:
    """Of one run; `lookahead` None: the controller's. `gather_s`: see `Device`."""
    policy: Policy = Controlled(ControlLimits()) if lookahead is None else FixedLookahead(lookahead)
    return rate_of(simulate(point_scenario(streams, agreement, policy, sequences_of(streams), gather_s=gather_s)))


# --- after a spike --------------------------------------------------------------------------------

SPIKE_AGREEMENT = 0.85
SPIKE_STREAMS = 64
LONE, SPIKE = (0.0, 6.0, 12.0), 20.0  # when lone requests come, and when the crowd does, s
AFTER = (60.0, 66.0, 72.0)
WINDOW = 5  # plans in a row whose median counts
NEAR_BEST = 0.95  # of the best lone speedup, by theory: k itself is loose, as the optimum is flat


@dataclass
class Listener:
    """Passes calls on to a controller and keeps its plans, each with the number of sequences that were open."""

    inner: Planner
    plans: list[tuple[int, RoundPlan]] = field(default_factory=list)
    open_ids: set[int] = field(default_factory=set)

    def open(self, kind: str = "", max_lookahead: int | None = None) -> Any:
        """See `Planner`."""
        sequence = self.inner.open(kind, max_lookahead)
        self.open_ids.add(id(sequence))
        return sequence

    def leased(self, sequence: Any, tier: int, replica_id: str | None) -> None:
        """See `Planner`."""
        self.inner.leased(sequence, tier, replica_id)

    def close(self, sequence: Any) -> None:
        """See `Planner`."""
        self.open_ids.discard(id(sequence))
        self.inner.close(sequence)

    def plan(self, sequence: Any, now: float, remaining: int, max_total_tokens: int) -> RoundPlan:
        """See `Planner`. The last rounds of a request are not kept: there the room bounds k."""
        plan = self.inner.plan(sequence, now, remaining, max_total_tokens)
        if remaining > ControlLimits().max_lookahead:
            self.plans.append((len(self.open_ids), plan))
        return plan

    def observe(self, sequence: Any, report: RoundReport, now: float) -> None:
        """See `Planner`."""
        self.inner.observe(sequence, report, now)


@dataclass(frozen=True)
class Listened:
    """The controller as a policy whose plans can be read afterwards."""

    limits: ControlLimits
    listeners: list[Listener] = field(default_factory=list)

    @property
    def lookahead(self) -> None:
        """The controller's choice."""
        return None

    def ladder(self, tiers: Sequence[Tier], windows: Sequence[int], settings: CoordinatorSettings) -> Ladder:
        """A ladder with a controller that is listened to."""
        self.listeners.append(Listener(Controller(self.limits)))
        return Ladder(tiers, windows, settings, self.listeners[-1])

    @property
    def plans(self) -> list[tuple[int, RoundPlan]]:
        """All plans so far, in their order, with the number of open sequences."""
        return [plan for listener in self.listeners for plan in listener.plans]


def recovery_rounds(agreement: float = SPIKE_AGREEMENT) -> int:
    """Rounds of a lone stream after 64 others have gone, until its k is as good again as any within 5 %."""
    policy = Listened(ControlLimits())
    times = (*LONE, *[SPIKE] * SPIKE_STREAMS, *AFTER)
    simulate(large_pair(
        Scripted(times, len(times)), policy, drafters=1, targets=1, agreement=agreement, num_tokens=128
    ))
    plans = policy.plans
    last = max(number for number, (streams, _) in enumerate(plans) if streams > 1)
    lone = [plan.k for _, plan in plans[last + 1 :]]
    pass_s, draft_s, hop_s = 0.0714, 0.0041, 0.002
    speedups = [chain_speedup(agreement, k, draft_s / pass_s, 4 * hop_s / pass_s) for k in range(1, 17)]
    enough = NEAR_BEST * max(speedups)
    good = [enough <= 1.0, *(speedup >= enough for speedup in speedups)]
    for number in range(len(lone) - WINDOW + 1):
        if good[round(median(lone[number : number + WINDOW]))]:
            return number
    return len(lone)


# --- which ladder ---------------------------------------------------------------------------------

LADDERS = {"medium 0.9, small 0.55": (0.55, 0.9, 0.0), "the same, hops of 2 ms": (0.55, 0.9, 0.002)}


def ladder_pick(small: float, medium: float, hop_s: float) -> tuple[int, ...]:
    """Rungs that the controller settles on, with one stream: small 0.4 ms, medium 8 ms, target 71.4 ms a pass.

    `small`: agreement of the small tier with the medium one; `medium`: of that with the target.
    """
    voices = (Voice("small", agreement=(small,)), Voice("medium", agreement=(medium,)), Voice("target"))
    tiers = tuple(
        PoolSpec(voice.name, EmulationSpec(voices[number:], seconds, 64, 0.0, hop_s))
        for number, (voice, seconds) in enumerate(zip(voices, (0.0004, 0.008, 0.0714), strict=True))
    )
    policy = Listened(ControlLimits(num_tiers=3))
    simulate(Scenario(tiers, Closed(3, 1), policy, (4,), num_tokens=300))
    rungs = [plan.rungs for _, plan in policy.plans]
    settled = rungs[len(rungs) // 2 :]
    return max(set(settled), key=settled.count)


# --- all of it ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ControlFindings:
    """Everything that is known of the controller in simulated time."""

    points: tuple[ControlPoint, ...]
    recovery_rounds: int
    picks: dict[str, tuple[int, ...]]  # ladder -> rungs
    wall_s: float

    @property
    def vs_best_fixed(self) -> float:
        """Of the worst point."""
        return min(point.vs_best for point in self.points)

    @property
    def vs_plain(self) -> float:
        """Of the worst point."""
        return min(point.vs_plain for point in self.points)

    def as_json(self) -> dict[str, object]:
        """Plain JSON types."""
        return {
            "emulated": True, "label": LABEL, "controller_vs_best_fixed": round(self.vs_best_fixed, 4),
            "controller_vs_plain": round(self.vs_plain, 4), "recovery_rounds": self.recovery_rounds,
            "picks": {name: list(rungs) for name, rungs in self.picks.items()}, "wall_s": round(self.wall_s, 1),
            "points": [
                {
                    "streams": point.streams, "agreement": point.agreement, "controller": round(point.controller, 2),
                    "plain": round(point.fixed[0], 2), "best_fixed": point.best,
                    "vs_best_fixed": round(point.vs_best, 4), "vs_plain": round(point.vs_plain, 4),
                    "fixed": {str(k): round(found, 2) for k, found in point.fixed.items()},
                }
                for point in self.points
            ],
        }


def measure(
    loads: Sequence[int] = LOADS, agreements: Sequence[float] = AGREEMENTS, lookaheads: Sequence[int] = LOOKAHEADS,
    workers: int = 2, watcher: Watcher | None = None,
) -> ControlFindings:
    """Every point with the controller and with each of `lookaheads` (0 among them), the spike and the ladders.

    Runs in `workers` processes, or with 1 in this one.
    """
    if 0 not in lookaheads:
        raise ValueError(f"lookaheads {tuple(lookaheads)}: add 0, which everything is compared with")
    began_s = time.monotonic()
    runs = [(n, a, k) for n in sorted(loads, reverse=True) for a in agreements for k in (None, *lookaheads)]
    jobs: list[Callable[[], Any]] = [partial(rate, *run) for run in runs]  # the longest first
    jobs += [recovery_rounds, *(partial(ladder_pick, *spec) for spec in LADDERS.values())]
    watcher = watcher or Unwatched()
    watcher.section(f"control: {LABEL}", len(jobs))
    results = _run(jobs, workers, watcher)
    rates = dict(zip(runs, results, strict=False))
    points = tuple(
        ControlPoint(n, a, rates[n, a, None], {k: rates[n, a, k] for k in lookaheads})
        for n in loads for a in agreements
    )
    recovery, *picks = results[len(runs) :]
    return ControlFindings(points, recovery, dict(zip(LADDERS, picks, strict=True)), time.monotonic() - began_s)


def _run(jobs: Sequence[Callable[[], Any]], workers: int, watcher: Watcher) -> list[Any]:
    if workers == 1:
        found = []
        for job in jobs:
            found.append(job())
            watcher.run_done()
        return found
    # Spawned: a fork would copy the locks of whatever threads this process has.
    with ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=gc.set_threshold, initargs=GC_THRESHOLDS,
    ) as pool:
        futures = [pool.submit(job) for job in jobs]
        for _ in as_completed(futures):
            watcher.run_done()
        return [future.result() for future in futures]

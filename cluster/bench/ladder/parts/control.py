"""The controller in simulated time: near the best fixed lookahead, never below plain, soon back after a spike."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from statistics import median
from typing import Any

import numpy as np

from cluster.bench.ladder.bench import SIMULATED, LadderBench, Row
from cluster.coordinator.control.controller import Controller
from cluster.coordinator.control.plan import ControlLimits, RoundPlan
from cluster.coordinator.control.planner import Planner
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.settings import CoordinatorSettings
from cluster.coordinator.tier import Tier
from cluster.simulation.load import Scripted
from cluster.simulation.preset import large_pair
from cluster.simulation.scenario import Controlled, FixedLookahead, Policy, Scenario, simulate

SEQUENCES = {1: 4, 4: 8, 16: 24, 64: 64}  # by the number of streams
AGREEMENTS = (0.3, 0.5, 0.7, 0.85, 0.95)
LOOKAHEADS = (0, 1, 2, 3, 4, 6, 8, 12, 16)  # fixed ones; 0: plain
LOOKAHEADS_BUSY = (0, 1, 2, 4)  # where the rows of the streams alone fill the target's flat part
BUSY = 64
LIMITS = ControlLimits()
TOKENS = 128  # of an answer
STAGGER_S = 0.15  # about two passes of the target
LONE_S, SPIKE_S, AFTER_S = (0.0, 6.0, 12.0), 20.0, (60.0, 66.0, 72.0)  # arrivals; a lone answer takes less than 6 s
SPIKE_STREAMS, SPIKE_TOKENS = 64, 128
BACK = 0.8  # of the lookahead before the spike counts as recovered
SETTLED = 5  # plans in a row whose median must be back


def control(bench: LadderBench) -> None:
    """`controller_vs_best_fixed` and `controller_vs_plain` at their worst points, and `recovery_rounds`."""
    points = [(streams, agreement) for streams in SEQUENCES for agreement in AGREEMENTS]
    jobs: list[Scenario] = []
    for streams, agreement in points:
        jobs += [scenario(streams, agreement, policy) for policy in _fixed(streams)]
        jobs.append(scenario(streams, agreement, Controlled(LIMITS)))
    rates = iter(_rates(bench, jobs))
    found = []
    for streams, agreement in points:
        fixed = {policy.lookahead: next(rates) for policy in _fixed(streams)}
        own, best = next(rates), max(fixed.values())
        found.append({
            "streams": streams, "agreement": agreement, "best_fixed": max(fixed, key=lambda k: fixed[k]),
            "vs_best_fixed": round(own / best, 4), "vs_plain": round(own / fixed[0], 4),
            "speedup_of_best_fixed": round(best / fixed[0], 4),
        })
        name = f"{streams} stream{'s' if streams > 1 else ''} at {agreement:g}"
        bench.rows.append(Row("control", SIMULATED, name, own / fixed[0], best / fixed[0]))
    bench.findings.details["control"] = found
    bench.realms["control"] = SIMULATED
    bench.add("controller_vs_best_fixed", min(point["vs_best_fixed"] for point in found), SIMULATED)
    bench.add("controller_vs_plain", min(point["vs_plain"] for point in found), SIMULATED)
    bench.add("recovery_rounds", float(recovery_rounds()), SIMULATED)


def _fixed(streams: int) -> list[FixedLookahead]:
    return [FixedLookahead(k) for k in (LOOKAHEADS_BUSY if streams >= BUSY else LOOKAHEADS)]


def scenario(streams: int, agreement: float, policy: Policy) -> Scenario:
    """Closed streams on one target and one drafter of the emulated pair.

    They begin one after the other: plain streams that began at one instant would share every pass for ever, which no
    network grants them.
    """
    begin_s = sorted(np.random.default_rng(streams).uniform(0.0, STAGGER_S, streams).tolist())
    later = [STAGGER_S] * (SEQUENCES[streams] - streams)
    return large_pair(
        Scripted((*begin_s, *later), streams), policy, drafters=1, targets=1, agreement=agreement, num_tokens=TOKENS
    )


def rate(job: Scenario) -> float:
    """Tokens per simulated second, from the first request to the last end: learning is part of it."""
    outcome = simulate(job)
    return sum(sum(stream.counts) for stream in outcome.streams) / outcome.end_s


def _rates(bench: LadderBench, jobs: Sequence[Scenario]) -> list[float]:
    bench.watcher.section(f"control: {SIMULATED}", len(jobs))
    if bench.settings.workers == 1:
        found = []
        for job in jobs:
            found.append(rate(job))
            bench.watcher.run_done()
        return found
    # Spawned: a fork would copy the locks of whatever threads this process has.
    with ProcessPoolExecutor(bench.settings.workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(rate, job) for job in jobs]
        for _ in as_completed(futures):
            bench.watcher.run_done()
        return [future.result() for future in futures]


# --- after a spike --------------------------------------------------------------------------------


class RecordedController:
    """A planner that keeps what another one planned, in the order of the rounds."""

    def __init__(self, inner: Planner) -> None:
        self._inner = inner
        self.plans: list[tuple[int, RoundPlan]] = []  # with the number of sequences that were open
        self._open: set[int] = set()  # identities; closing twice is allowed

    def open(self, kind: str = "", max_lookahead: int | None = None) -> Any:
        """See `Planner.open`."""
        sequence = self._inner.open(kind, max_lookahead)
        self._open.add(id(sequence))
        return sequence

    def leased(self, sequence: Any, tier: int, replica_id: str | None) -> None:
        """See `Planner.leased`."""
        self._inner.leased(sequence, tier, replica_id)

    def close(self, sequence: Any) -> None:
        """See `Planner.close`."""
        self._open.discard(id(sequence))
        self._inner.close(sequence)

    def plan(self, sequence: Any, now: float, remaining: int, max_total_tokens: int) -> RoundPlan:
        """See `Planner.plan`."""
        found = self._inner.plan(sequence, now, remaining, max_total_tokens)
        if remaining > LIMITS.max_lookahead:  # the end of an answer bounds the plan by itself
            self.plans.append((len(self._open), found))
        return found

    def observe(self, sequence: Any, report: Any, now: float) -> None:
        """See `Planner.observe`."""
        self._inner.observe(sequence, report, now)


@dataclass(frozen=True)
class Recorded:
    """The controller as a policy whose plans can be read afterwards."""

    planners: list[RecordedController] = field(default_factory=list)

    @property
    def lookahead(self) -> None:
        """The controller's choice."""
        return None

    def ladder(self, tiers: Sequence[Tier], windows: Sequence[int], settings: CoordinatorSettings) -> Ladder:
        """A ladder with a controller that is listened to."""
        self.planners.append(RecordedController(Controller(LIMITS)))
        return Ladder(tiers, windows, settings, self.planners[-1])


def recovery_rounds(agreement: float = 0.85) -> int:
    """Rounds of a lone stream after a spike of load, until the lookahead is back near where it was before."""
    times = (*LONE_S, *([SPIKE_S] * SPIKE_STREAMS), *AFTER_S)
    policy = Recorded()
    simulate(large_pair(
        Scripted(times, len(times)), policy, drafters=1, targets=1, agreement=agreement, num_tokens=SPIKE_TOKENS,
    ))
    return back_after([(count, plan.k) for count, plan in policy.planners[0].plans])


def back_after(plans: Sequence[tuple[int, int]]) -> int:
    """Rounds after the crowd has gone until k is back; all of them if it never is.

    `plans`: sequences that were open, and k of the round.
    """
    crowd = max(count for count, _ in plans)
    first = next(i for i, (count, _) in enumerate(plans) if count > crowd // 2)
    last = max(i for i, (count, _) in enumerate(plans) if count > 1)
    before = [k for count, k in plans[:first] if count == 1][-20:]
    later = [k for count, k in plans[last + 1 :] if count == 1]
    if not before or not later:
        raise ValueError("no lone rounds before or after the spike")
    usual = median(before)
    for number in range(len(later) - SETTLED + 1):
        if median(later[number : number + SETTLED]) >= BACK * usual:
            return number
    return len(later)

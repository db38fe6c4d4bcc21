"""What the goodput controller comes to in closed loop: against plain decoding and every fixed lookahead, point by point.

The real coordinator over an emulated 70B/7B pair in simulated time. Streams begin one after the other within a pass:
if all began at the same instant, plain streams would stay in step for ever and share every pass, which no network
grants them. Every fixed lookahead has the same arrivals, prompts and texts as the controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np

from cluster.bench.watch import Unwatched, Watcher
from cluster.coordinator.control.plan import ControlLimits
from cluster.coordinator.settings import OverlapSettings
from cluster.simulation.load import Scripted
from cluster.simulation.outcome import Outcome
from cluster.simulation.preset import large_pair
from cluster.simulation.scenario import Controlled, FixedLookahead, Policy, Scenario, simulate

LOADS = (1, 4, 16, 64)
AGREEMENTS = (0.3, 0.5, 0.7, 0.85, 0.95)
LOOKAHEADS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
STAGGER_S = 0.15  # about two passes: who begins when is decided by nothing
TOKENS = 96  # of a sequence


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


def point_scenario(streams: int, agreement: float, policy: Policy, sequences: int, *, gather_s: float = 0.0) -> Scenario:
    """`streams` clients of one draft and one target replica, which send `sequences` requests each."""
    rng = np.random.default_rng(streams)
    first = sorted(rng.uniform(0.0, STAGGER_S, streams).tolist())
    load = Scripted((*first, *[STAGGER_S] * (streams * (sequences - 1))), streams)
    scenario = large_pair(load, policy, drafters=1, targets=1, agreement=agreement, num_tokens=TOKENS)
    return replace(scenario, tiers=tuple(replace(tier, gather_s=gather_s) for tier in scenario.tiers))


def sequences_of(streams: int) -> int:
    """Requests per stream: enough of them for acceptance to average out, and for the controller to settle."""
    return max(3, 48 // streams)


def rate_of(outcome: Outcome, skip: float = 0.0) -> float:
    """Tokens per second while all streams were busy; `skip`: the part of it left out at the beginning."""
    begin_s, end_s = outcome.window()
    begin_s += skip * (end_s - begin_s)
    count = sum(
        count for stream in outcome.streams for at, count in zip(stream.times_s, stream.counts, strict=True)
        if begin_s < at <= end_s
    )
    return count / (end_s - begin_s)


def rate(streams: int, agreement: float, lookahead: int | None, gather_s: float = 0.0) -> float:
    """Of one run; `lookahead` None: the controller's."""
    policy: Policy = Controlled(ControlLimits()) if lookahead is None else FixedLookahead(lookahead)
    num = sequences_of(streams)
    return rate_of(simulate(point_scenario(streams, agreement, policy, num, gather_s=gather_s)))

"""A closed-form world: paced replicas and true acceptance, in lockstep rounds of all streams, without any clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from cluster.coordinator.control.controller import Controller, SequenceControl
from cluster.coordinator.control.plan import Check, Pass, RoundPlan, RoundReport


@dataclass(frozen=True)
class Pace:
    """Seconds of a pass: flat, then linear."""

    flat_s: float
    flat_rows: int = 10**6
    row_s: float = 0.0

    def seconds(self, rows: float) -> float:
        return self.flat_s + self.row_s * max(0.0, rows - self.flat_rows)


TARGET = Pace(0.0714, 64, 0.0011)
DRAFT = Pace(0.0041, 24, 0.0002)
HOP_S = 0.002


def tokens(alpha: float, k: float) -> float:
    return float((1 - alpha ** (k + 1)) / (1 - alpha))


def fixed_goodput(alpha: float, streams: int, k: int, draft: Pace = DRAFT, target: Pace = TARGET) -> float:
    """Tokens per second of all streams at a fixed k; 0 is plain."""
    seconds = target.seconds(streams * (k + 1)) + HOP_S
    if k:
        seconds += k * draft.seconds(streams) + HOP_S
    return streams * tokens(alpha, k) / seconds


@dataclass
class Pair:
    """Streams over one draft and one target replica.

    Goodput is counted in expected tokens and expected seconds of what was planned, so that a test compares decisions
    and not luck; what the controller sees is drawn, with lognormal noise on every pass.
    """

    controller: Controller
    alpha: float
    noise: float = 0.0
    seed: int = 0
    draft: Pace = DRAFT
    target: Pace = TARGET
    others: int = 0  # rows of other coordinators in each target pass
    now: float = 0.0
    streams: list[SequenceControl] = field(default_factory=list)
    plans: list[RoundPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def noisy(self, seconds: float) -> float:
        return seconds * self.random.lognormvariate(0.0, self.noise)

    def resize(self, num_streams: int) -> None:
        while len(self.streams) > num_streams:
            self.controller.close(self.streams.pop())
        while len(self.streams) < num_streams:
            stream = self.controller.open()
            self.controller.leased(stream, 0, "draft")
            self.controller.leased(stream, 1, "target")
            self.streams.append(stream)

    def accepted(self, k: int) -> int:
        return next((i for i in range(k) if self.random.random() >= self.alpha), k)

    def round(self) -> tuple[float, float]:
        """Expected tokens and expected seconds of a round of all streams."""
        plans = [self.controller.plan(stream, self.now, 10**6, 10**6) for stream in self.streams]
        self.plans = plans
        longest = max(plan.k for plan in plans)
        passes = []  # of the draft replica: rows, seen seconds
        expected_s = HOP_S
        for step in range(1, longest + 1):
            rows = sum(plan.k >= step for plan in plans)
            passes.append((rows, self.noisy(self.draft.seconds(rows))))
            expected_s += self.draft.seconds(rows)
        target_rows = self.others + sum(plan.k + 1 for plan in plans)
        expected_s += self.target.seconds(target_rows) + (HOP_S if longest else 0.0)
        target_s = self.noisy(self.target.seconds(target_rows))
        drafting_s = sum(s for _, s in passes)
        for stream, plan in zip(self.streams, plans, strict=True):
            below_s = sum(s for _, s in passes[: plan.k])
            seen = [Pass(1, target_rows, target_s)]
            checks: tuple[Check, ...] = ()
            if plan.k:
                seen.append(Pass(0, *passes[plan.k - 1]))
                checks = (Check(0, 1, plan.k, self.accepted(plan.k)),)
            verify_s = target_s + drafting_s - below_s  # waits for those who draft longer
            hops_s = HOP_S * (2 if plan.k else 1)
            self.now += 0.0
            self.controller.observe(stream, RoundReport(
                plan, round_s=hops_s + below_s + verify_s, checks=checks, passes=tuple(seen), below_s=below_s,
                below_model_s=below_s, verify_s=verify_s, verify_model_s=target_s,
            ), self.now)
        self.now += expected_s
        return sum(tokens(self.alpha, plan.k) for plan in plans), expected_s

    def run(self, num_rounds: int) -> float:
        """Tokens per second of all streams."""
        total, seconds = 0.0, 0.0
        for _ in range(num_rounds):
            made, took = self.round()
            total += made
            seconds += took
        return total / seconds

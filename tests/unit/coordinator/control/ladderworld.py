"""A closed-form world of one sequence over three tiers, which carries out whatever ladder is planned."""

from __future__ import annotations

import random

from cluster.coordinator.control.controller import Controller, SequenceControl
from cluster.coordinator.control.plan import Check, Pass, RoundPlan, RoundReport

SECONDS = (0.0004, 0.008, 0.0714)  # of a pass of each tier
Rates = dict[tuple[int, int], float]


class Climber:
    """`rates[lower, upper]`: acceptance of each pair of tiers."""

    def __init__(self, controller: Controller, rates: Rates, noise: float = 0.0, seed: int = 0) -> None:
        self.controller = controller
        self.rates = rates
        self.random = random.Random(seed)
        self.noise = noise
        self.stream: SequenceControl = controller.open()
        for tier in range(3):
            controller.leased(self.stream, tier, f"replica-{tier}")
        self.now = 0.0
        self.num_tokens = 0

    def _pass(self, tier: int, rows: int, seen: list[Pass]) -> float:
        seconds = SECONDS[tier] * self.random.lognormvariate(0.0, self.noise)
        seen.append(Pass(tier, rows, seconds))
        return seconds

    def _accepted(self, lower: int, upper: int, k: int) -> int:
        return next((i for i in range(k) if self.random.random() >= self.rates[lower, upper]), k)

    def round(self) -> RoundPlan:
        plan = self.controller.plan(self.stream, self.now, 10**6, 10**6)
        seen: list[Pass] = []
        checks: list[Check] = []
        below_s, length = 0.0, 0
        if plan.rungs:
            length, below_s = self._collect(plan, len(plan.rungs) - 1, seen, checks)
        target_s = self._pass(2, length + 1, seen)
        accepted = 0
        if length:
            accepted = self._accepted(plan.rungs[-1], 2, length)
            checks.append(Check(plan.rungs[-1], 2, length, accepted))
        self.num_tokens += accepted + 1
        self.now += below_s + target_s
        self.controller.observe(self.stream, RoundReport(
            plan, below_s + target_s, tuple(checks), tuple(seen), below_s, below_s, target_s, target_s,
        ), self.now)
        return plan

    def _collect(self, plan: RoundPlan, level: int, seen: list[Pass], checks: list[Check]) -> tuple[int, float]:
        """Tokens that a rung hands up, and the seconds they took."""
        tier = plan.rungs[level]
        if level == 0:
            return plan.k, sum(self._pass(tier, 1, seen) for _ in range(plan.k))
        have, seconds = 0, 0.0
        while have < plan.windows[level - 1]:
            length, took = self._collect(plan, level - 1, seen, checks)
            accepted = self._accepted(plan.rungs[level - 1], tier, length)
            checks.append(Check(plan.rungs[level - 1], tier, length, accepted))
            seconds += took + self._pass(tier, length + 1, seen)
            have += accepted + 1
        return have, seconds

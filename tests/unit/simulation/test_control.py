"""The controller in closed loop, in simulated time: near the best fixed lookahead, plain when that is best."""

from __future__ import annotations

import pytest

from cluster.coordinator.control.plan import ControlLimits
from cluster.simulation.control import (
    ControlFindings,
    ControlPoint,
    Listened,
    ladder_pick,
    measure,
    point_scenario,
    rate,
    rate_of,
    recovery_rounds,
)
from cluster.simulation.scenario import FixedLookahead, simulate


@pytest.mark.parametrize(("streams", "agreement", "lookaheads"), [(4, 0.85, (0, 12)), (16, 0.5, (0, 5))])
def test_the_controller_is_near_the_best_fixed_lookahead(
    streams: int, agreement: float, lookaheads: tuple[int, ...]
) -> None:
    own = rate(streams, agreement, None)
    assert own >= 0.95 * max(rate(streams, agreement, k) for k in lookaheads)


def test_a_controller_that_knows_nothing_does_not_stay_cold_under_load() -> None:
    policy = Listened(ControlLimits())
    simulate(point_scenario(32, 0.85, policy, 2))
    reasons = [plan.reason.value for _, plan in policy.plans]
    assert reasons.count("cold") <= 3 * 32
    assert sum(plan.k > 0 for _, plan in policy.plans) >= 0.8 * len(reasons)


def test_plain_is_kept_where_the_target_waits_for_all_of_its_streams() -> None:
    def run(policy: Listened | FixedLookahead) -> float:
        return rate_of(simulate(point_scenario(64, 0.3, policy, 2, gather_s=0.005)))

    policy = Listened(ControlLimits())
    assert run(policy) >= 0.9 * run(FixedLookahead(0))  # of 130 rounds, those in which it learns are part
    settled = [plan for _, plan in policy.plans[len(policy.plans) // 2 :]]
    assert sum(not plan.is_plain for plan in settled) <= 0.005 * len(settled)


def test_short_requests_profit_from_what_others_learned() -> None:
    policy = Listened(ControlLimits())
    simulate(point_scenario(1, 0.85, policy, 12))
    reasons = [plan.reason.value for _, plan in policy.plans]
    assert "cold" not in reasons[5:]


def test_k_is_back_soon_after_a_spike() -> None:
    assert recovery_rounds() <= 20


def test_three_tiers_are_picked_without_hops_and_two_with_them() -> None:
    assert ladder_pick(0.55, 0.9, 0.0) == (0, 1)
    assert ladder_pick(0.55, 0.9, 0.002) == (1,)


def test_the_worst_point_is_what_counts() -> None:
    points = (ControlPoint(1, 0.5, 19.0, {0: 10.0, 4: 20.0}), ControlPoint(4, 0.5, 9.9, {0: 10.0, 4: 9.0}))
    found = ControlFindings(points, 0, {}, 1.0)
    assert found.vs_best_fixed == pytest.approx(0.95)
    assert found.vs_plain == pytest.approx(0.99)
    assert points[0].best == 4 and points[1].best == 0


def test_plain_must_be_among_what_is_compared() -> None:
    with pytest.raises(ValueError, match="add 0"):
        measure(lookaheads=(1, 2))

"""The controller is never far from the best fixed k, never below plain, and always within its bounds."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.coordinator.control.controller import Controller
from cluster.coordinator.control.plan import (
    AheadOutcome,
    Check,
    ControlLimits,
    Pass,
    Reason,
    RoundReport,
    TreeKind,
)
from tests.unit.coordinator.control.ladderworld import Climber
from tests.unit.coordinator.control.world import Pair, fixed_goodput

relaxed = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
ROUNDS = 200
MAX_K = 16


def settled(alpha: float, streams: int, noise: float, seed: int = 0) -> tuple[float, float]:
    """Goodput of `ROUNDS` rounds from a cold start, against the best fixed k and against plain."""
    pair = Pair(Controller(ControlLimits()), alpha, noise, seed)
    pair.resize(streams)
    goodput = pair.run(ROUNDS)
    fixed = [fixed_goodput(alpha, streams, k) for k in range(MAX_K + 1)]
    return goodput / max(fixed), goodput / fixed[0]


@pytest.mark.parametrize("streams", [1, 4, 16, 64])
@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.7, 0.85, 0.95])
def test_goodput_is_near_the_best_fixed_k_and_never_below_plain(alpha: float, streams: int) -> None:
    to_best, to_plain = settled(alpha, streams, noise=0.0)
    assert to_best >= 0.95
    assert to_plain >= 0.98


@pytest.mark.parametrize("streams", [1, 4, 16])
@pytest.mark.parametrize("alpha", [0.3, 0.7, 0.95])
def test_noise_in_timings_breaks_nothing(alpha: float, streams: int) -> None:
    results = [settled(alpha, streams, noise=0.1, seed=seed) for seed in range(3)]
    assert sum(to_best for to_best, _ in results) / len(results) >= 0.94
    assert min(to_plain for _, to_plain in results) >= 0.98


@pytest.mark.parametrize("alpha", [0.3, 0.85])
def test_noise_under_load_costs_nothing_against_plain(alpha: float) -> None:
    assert settled(alpha, 64, noise=0.1, seed=2)[1] >= 0.97


def test_after_a_load_spike_k_recovers_within_20_rounds() -> None:
    pair = Pair(Controller(ControlLimits()), 0.85, noise=0.1, seed=3)
    pair.resize(1)
    pair.run(80)
    before = pair.plans[0].k
    pair.resize(64)
    pair.run(100)
    assert sum(plan.is_plain for plan in pair.plans) >= 60  # the spike is served plain
    pair.resize(1)
    pair.run(20)
    best = max(fixed_goodput(0.85, 1, k) for k in range(MAX_K + 1))
    assert before > 0
    assert pair.run(20) >= 0.95 * best


def test_with_speculation_off_under_load_nothing_but_rare_probes_is_drafted() -> None:
    pair = Pair(Controller(ControlLimits()), 0.7, noise=0.0)
    pair.resize(64)
    pair.run(150)
    drafted = 0
    for _ in range(100):
        pair.round()
        drafted += sum(plan.k for plan in pair.plans)
    assert drafted <= 0.001 * 64 * 100


def test_acceptance_that_recovers_is_noticed_by_probes() -> None:
    pair = Pair(Controller(ControlLimits()), 0.02, noise=0.05, seed=1)
    pair.resize(1)
    pair.run(150)
    plain = sum(pair.round()[1] > 0 and pair.plans[0].is_plain for _ in range(50))
    assert plain >= 40
    pair.alpha = 0.9
    pair.run(300)
    best = max(fixed_goodput(0.9, 1, k) for k in range(MAX_K + 1))
    assert pair.run(40) >= 0.9 * best


def test_three_tiers_are_used_where_theory_says_so() -> None:
    climber = Climber(Controller(ControlLimits(num_tiers=3)), {(0, 1): 0.55, (0, 2): 0.5, (1, 2): 0.9}, 0.1)
    plans = [climber.round() for _ in range(200)][100:]
    assert sum(plan.rungs == (0, 1) for plan in plans) >= 90


def test_two_tiers_are_used_where_the_middle_one_does_not_pay() -> None:
    climber = Climber(Controller(ControlLimits(num_tiers=3)), {(0, 1): 0.4, (0, 2): 0.5, (1, 2): 0.5}, 0.1)
    plans = [climber.round() for _ in range(200)][100:]
    assert sum(len(plan.rungs) == 1 for plan in plans) >= 90


def test_nothing_is_drafted_when_the_target_adds_the_last_token_itself() -> None:
    controller = Controller(ControlLimits())
    stream = controller.open()
    controller.leased(stream, 0, "draft")
    controller.leased(stream, 1, "target")
    assert controller.plan(stream, 0.0, remaining=1, max_total_tokens=10).is_plain
    assert controller.plan(stream, 0.0, remaining=2, max_total_tokens=10).k == 1


def test_a_tier_without_a_lease_is_not_used() -> None:
    controller = Controller(ControlLimits(num_tiers=3))
    stream = controller.open()
    controller.leased(stream, 2, "target")
    assert controller.plan(stream, 0.0, 100, 100).is_plain
    controller.leased(stream, 1, "medium")
    assert controller.plan(stream, 0.0, 100, 100).rungs == (1,)


def test_a_drafter_without_passes_is_free_and_gets_used() -> None:
    controller = Controller(ControlLimits())
    stream = controller.open()
    controller.leased(stream, 0, "ngram")
    controller.leased(stream, 1, "target")
    for i in range(20):
        plan = controller.plan(stream, float(i), 100, 1000)
        rows, seconds = plan.k + 1, 0.05 + 1e-6 * i
        checks = (Check(0, 1, plan.k, plan.k),) if plan.k else ()
        controller.observe(stream, RoundReport(
            plan, seconds, checks, (Pass(1, rows, seconds),), 0.0, 0.0, seconds, seconds), float(i))
    assert controller.plan(stream, 20.0, 100, 1000).reason in (Reason.MODEL, Reason.REACH, Reason.TRIAL)


@relaxed
@given(
    num_tiers=st.integers(2, 4), max_lookahead=st.integers(1, 24), max_branches=st.sampled_from([0, 1, 8, 32]),
    trees=st.sampled_from(list(TreeKind)), max_rows=st.integers(1, 100), nodes=st.integers(1, 40),
    data=st.data(),
)
def test_every_plan_is_within_bounds(
    num_tiers: int, max_lookahead: int, max_branches: int, trees: TreeKind, max_rows: int, nodes: int,
    data: st.DataObject,
) -> None:
    limits = ControlLimits(num_tiers, max_lookahead, max_branches, 3, max_rows, trees, nodes)
    controller = Controller(limits)
    streams = [controller.open() for _ in range(data.draw(st.integers(1, 4)))]
    for stream in streams:
        for tier in range(num_tiers):
            controller.leased(stream, tier, f"{tier}")
    seconds = st.floats(0.0, 10.0, allow_nan=False)
    now = 0.0
    for _ in range(data.draw(st.integers(1, 12))):
        stream = data.draw(st.sampled_from(streams))
        remaining = data.draw(st.integers(1, 50))
        plan = controller.plan(stream, now, remaining, 100)
        assert 0 <= plan.k <= min(max_lookahead, remaining - 1)
        assert 0 <= plan.k_after_miss <= min(max_lookahead, remaining - 1)
        assert len(plan.windows) == max(0, len(plan.rungs) - 1)
        assert all(1 <= window <= min(max_lookahead, remaining - 1) for window in plan.windows)
        assert list(plan.rungs) == sorted(set(plan.rungs)) and all(0 <= t < num_tiers - 1 for t in plan.rungs)
        assert plan.is_plain == (plan.shape is None) == (plan.k == 0)
        rows = sum(s.rows for s in streams)
        assert rows <= max(max_rows, len(streams))
        if plan.shape is not None:
            assert plan.shape.num_tokens == plan.k and plan.shape.num_nodes <= nodes
        if plan.ahead is not None:
            assert plan.ahead.num_branches <= max_branches and plan.ahead.num_guesses <= 3
            assert 1 <= plan.ahead.shape.num_tokens <= min(max_lookahead, remaining - 1)
            assert plan.ahead.time_s >= 0
        pairs = list(zip(plan.rungs, (*plan.rungs[1:], num_tiers - 1), strict=False))
        checks = tuple(Check(a, b, plan.k, data.draw(st.integers(0, plan.k))) for a, b in pairs)
        passes = tuple(
            Pass(tier, data.draw(st.integers(0, 300)), data.draw(seconds)) for tier in (*plan.rungs, num_tiers - 1)
        )
        took = data.draw(seconds)
        controller.observe(stream, RoundReport(
            plan, took, checks, passes, data.draw(seconds), data.draw(seconds), data.draw(seconds),
            data.draw(seconds), AheadOutcome(data.draw(st.booleans())) if plan.ahead else None,
        ), now)
        now += took
    for stream in streams:
        controller.close(stream)
        controller.close(stream)


def test_requests_of_few_rounds_teach_what_rounds_take_too() -> None:
    controller = Controller(ControlLimits())
    pair = Pair(controller, 0.85, noise=0.03, seed=1)
    for _ in range(40):
        pair.resize(0)
        pair.resize(24)
        for _ in range(3):
            pair.round()
    target = controller._fleet.meet(1, "target")
    assert max(target.tried.rounds(24, (0,), k) for k in range(1, MAX_K + 1)) > 1.0

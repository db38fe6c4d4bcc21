"""Simulated streams carry the target's own text, repeat exactly, keep the devices' limits, and obey theory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.coordinator.control.plan import ControlLimits
from cluster.coordinator.settings import CoordinatorSettings, OverlapSettings, TreeSettings
from cluster.simulation.load import Closed, Poisson, Scripted
from cluster.simulation.scenario import Controlled, Scenario, simulate
from cluster.simulation.theory import chain_speedup, committed_per_round
from tests.unit.simulation.scenarios import alone, one_stream, pair, triple


def overlapped(scenario: Scenario) -> Scenario:
    return replace(scenario, settings=CoordinatorSettings(overlap=OverlapSettings(12, 2, 8)))


SCENARIOS = {
    "plain": pair(Closed(40, 16), 0),
    "closed": pair(Closed(60, 24), 4),
    "poisson": pair(Poisson(60, 40.0, 24), 6),
    "spike": pair(Scripted((0.0,) * 5 + (1.0,) * 30, 32), 3, drafters=1),
    "three tiers": triple(Closed(40, 16), 3, 8),
    "drafts that come too late": replace(
        pair(Poisson(40, 20.0, 40), 8, drafters=1, num_tokens=48),
        settings=CoordinatorSettings(draft_timeout_s=0.04, catch_up_token_s=0.0),
    ),
    "a draft pool that is too small": replace(
        pair(Closed(40, 40), 4), tiers=(replace(pair(Closed(1, 1), 4).tiers[0], max_sequences=6, lease_wait_s=0.2),
                                        pair(Closed(1, 1), 4).tiers[1]),
    ),
    "overlapped": overlapped(pair(Closed(24, 8), 5, num_tokens=40)),
    "overlapped on a small pool": overlapped(pair(Closed(24, 24), 5, drafters=1)),
    "trees": replace(
        pair(Closed(24, 8), 4), settings=CoordinatorSettings(tree=TreeSettings(widths=(2, 2, 1, 1)))
    ),
    "overlapped trees": replace(
        pair(Closed(24, 8), 5, num_tokens=40),
        settings=CoordinatorSettings(tree=TreeSettings(num_nodes=12), overlap=OverlapSettings(6, 2, 5)),
    ),
    "controlled": replace(
        pair(Closed(40, 16), 4, num_tokens=40), policy=Controlled(ControlLimits(max_lookahead=8, max_branches=8)),
    ),
    "passes too small for a batch": replace(
        pair(Closed(40, 40), 4),
        tiers=tuple(replace(tier, max_rows=7) for tier in pair(Closed(1, 1), 4).tiers),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_stream_is_the_targets_own_text(name: str) -> None:
    scenario = SCENARIOS[name]
    outcome = simulate(scenario)
    for index, stream in enumerate(outcome.streams):
        assert stream.failure is None
        assert list(stream.token_ids) == alone(scenario, index)
        assert sum(stream.counts) == scenario.num_tokens
    drafted = sum(stream.figures.drafted for stream in outcome.streams)
    assert (drafted > 0) == (scenario.policy.lookahead != 0), "inconclusive: nothing was drafted"


@pytest.mark.parametrize("name", SCENARIOS)
def test_equal_scenarios_have_equal_outcomes(name: str) -> None:
    assert simulate(SCENARIOS[name]) == simulate(SCENARIOS[name])


def test_other_seeds_have_other_outcomes() -> None:
    scenario = SCENARIOS["poisson"]
    assert simulate(scenario) != simulate(replace(scenario, seed=1))


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_replica_does_more_than_its_device_can(name: str) -> None:
    scenario = SCENARIOS[name]
    for replica in simulate(scenario).replicas:
        spec = scenario.tiers[replica.tier]
        ready_s = 0.0
        for step in replica.passes:
            assert step.begin_s >= ready_s - 1e-9
            assert 1 <= step.rows <= spec.max_rows
            beyond = max(0, step.rows - spec.emulation.flat_rows)
            assert step.seconds == pytest.approx(spec.emulation.pass_s + spec.emulation.row_s * beyond)
            ready_s = step.begin_s + step.seconds


@pytest.mark.parametrize("lookahead", [3, 5, 8, 12])
def test_one_synchronous_stream_is_as_fast_as_theory_says(lookahead: int) -> None:
    draft, target = (tier.emulation for tier in one_stream(lookahead, 1).tiers)
    c, hops = draft.pass_s / target.pass_s, 4 * target.hop_s / target.pass_s
    outcome = simulate(one_stream(lookahead, 16_000))
    (stream,) = outcome.streams
    rounds = stream.times_s[1:-lookahead]  # the last ones may draft less
    assert [b - a for a, b in zip(rounds, rounds[1:], strict=False)] == pytest.approx(
        [target.pass_s * (lookahead * c + 1 + hops)] * (len(rounds) - 1)
    )
    figures = outcome.figures()
    assert figures.committed_per_round == pytest.approx(committed_per_round(0.85, lookahead), rel=0.02)
    assert figures.tokens_per_s * target.pass_s == pytest.approx(chain_speedup(0.85, lookahead, c, hops), rel=0.02)


def test_an_overlapped_stream_beats_every_synchronous_one() -> None:
    best = max(simulate(one_stream(k, 1_000)).figures().tokens_per_s for k in (3, 5, 8, 12))
    outcome = simulate(overlapped(one_stream(5, 1_000)))
    (stream,) = outcome.streams
    assert stream.figures.ahead.get("hit", 0) > 2 * stream.figures.ahead.get("late", 0)
    assert outcome.figures().tokens_per_s > 1.1 * best


def test_more_devices_never_hurt_a_loaded_pool_much() -> None:
    few, many = (
        simulate(pair(Closed(96, 48), 4, targets=targets)).figures().tokens_per_s for targets in (1, 4)
    )
    assert many > 1.5 * few


def test_draft_pools_that_are_full_or_late_show_as_degraded_rounds() -> None:
    late = simulate(SCENARIOS["drafts that come too late"]).figures()
    full = simulate(SCENARIOS["a draft pool that is too small"]).figures()
    assert late.degraded_rounds > 0 and "tier0:late" in late.degraded
    assert full.degraded_rounds > 0 and "tier0:no_replica" in full.degraded


def test_a_full_target_pool_refuses_after_its_wait() -> None:
    scenario = pair(Closed(8, 8), 2, targets=1, num_tokens=400)
    cramped = replace(scenario.tiers[1], max_sequences=4, lease_wait_s=1.0)
    outcome = simulate(replace(scenario, tiers=(scenario.tiers[0], cramped)))
    assert sorted(stream.failure or "" for stream in outcome.streams) == [""] * 4 + ["exhausted"] * 4
    assert outcome.figures().failed == 4


def test_leases_spread_over_the_least_loaded_replicas() -> None:
    outcome = simulate(pair(Closed(8, 8), 4, drafters=4, targets=4))
    assert all(max(step.rows for step in replica.passes) <= 2 * (8 + 4) for replica in outcome.replicas)
    assert all(replica.passes for replica in outcome.replicas)


def test_latencies_count_from_arrival() -> None:
    outcome = simulate(pair(Scripted((0.0, 0.0, 0.0), 1), 4, num_tokens=8))
    waits = [stream.begin_s - stream.arrives_s for stream in outcome.streams]
    assert waits[0] == 0 and waits == sorted(waits) and waits[2] > waits[1] > 0
    figures = outcome.figures()
    assert figures.first_token_s_p99 is not None and figures.first_token_s_p99 > waits[1]


def test_a_closed_loop_sends_when_a_stream_is_free() -> None:
    outcome = simulate(pair(Closed(3, 1), 4, num_tokens=8))
    assert all(stream.begin_s == stream.arrives_s for stream in outcome.streams)
    assert [stream.begin_s for stream in outcome.streams[1:]] == [stream.end_s for stream in outcome.streams[:-1]]


def test_scenarios_without_sense_say_what_to_change() -> None:
    with pytest.raises(ValueError, match="at least the target"):
        Scenario((), Closed(1, 1), pair(Closed(1, 1), 4).policy)
    with pytest.raises(ValueError, match="at least one sequence"):
        Closed(0, 1)
    with pytest.raises(ValueError, match="positive"):
        Poisson(1, 0.0, 1)

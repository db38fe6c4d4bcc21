"""Committed ids are those of the target alone, whatever the ladder, and are cut exactly."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from actors.messages import Origin
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import FinishReason
from tests.unit.coordinator.fakes import PROMPT, alone, collect, make_request, make_tiers, run


@pytest.mark.parametrize("lookahead", [0, 1, 2, 4, 8, 16])
@pytest.mark.parametrize("percent", [0, 70, 100])
def test_two_tiers_give_the_target_alone(lookahead: int, percent: int) -> None:
    for max_tokens in [*range(1, lookahead + 3), 40]:
        tiers = make_tiers(percent)
        ids, finish = run(make_request(max_tokens, lookahead), tiers)
        assert ids == alone(max_tokens)
        assert finish.reason is FinishReason.LENGTH
        assert not finish.figures.degraded
        assert all(count <= max_tokens - 1 for count in tiers[0].asked)


@pytest.mark.parametrize("lookahead", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(
    ("percents", "windows"),
    [((60, 85), (1,)), ((60, 85), (6,)), ((100, 100), (8,)), ((0, 0), (4,)), ((40, 70, 90), (3, 7)),
     ((100, 100, 100), (4, 9)), ((90, 10, 90), (5, 2))],
)
def test_deep_ladders_give_the_target_alone(
    lookahead: int, percents: tuple[int, ...], windows: tuple[int, ...]
) -> None:
    for max_tokens in [1, 2, 3, 5, 9, 60]:
        ids, finish = run(make_request(max_tokens, lookahead), make_tiers(*percents), windows)
        assert ids == alone(max_tokens)
        assert not finish.figures.degraded


def test_perfect_drafts_commit_k_plus_one_a_round() -> None:
    _, finish = run(make_request(50, 4), make_tiers(100))
    figures = finish.figures
    assert (figures.rounds, figures.drafted, figures.accepted, figures.bonus) == (10, 40, 40, 10)
    assert figures.mean_accepted_tokens == 5.0
    assert figures.acceptance_rate == 1.0
    assert figures.accepted_at == figures.drafted_at == (10, 10, 10, 10)
    assert figures.accepted_by_tier == {0: 40}


def test_a_middle_tier_collects_its_window_before_the_target_runs() -> None:
    tiers = make_tiers(100, 100)
    _, finish = run(make_request(33, 3), tiers, (8,))
    assert finish.figures.rounds == 4  # 9, 9, 9, then 6
    assert finish.figures.accepted_by_tier == {1: 29}


def test_only_new_tokens_travel_after_the_first_call() -> None:
    tiers = make_tiers(60, 85)
    run(make_request(60, 4), tiers, (6,))
    assert all(tier.contexts[0].start == 0 for tier in tiers)
    assert all(context.start > 0 for tier in tiers for context in tier.contexts[1:])


def test_a_draft_that_has_nothing_to_say_has_read_the_context_all_the_same() -> None:
    tiers = make_tiers(100)
    tiers[0].faults = lambda kind: "empty" if kind == "propose" else None
    ids, finish = run(make_request(20, 4), tiers)
    assert ids == alone(20)
    assert [context.start for context in tiers[0].contexts] == [0, *range(3, 21)]
    assert finish.figures.drafted == 0
    assert not finish.figures.degraded


def test_tiers_are_told_the_prompt_before_and_the_text_after_a_sequence() -> None:
    tiers = make_tiers(60, 85)
    ids, _ = run(make_request(20, 4), tiers, (6,))
    assert all(tier.told == [PROMPT] for tier in tiers)
    assert all(tier.kept == [(*PROMPT, *ids)] for tier in tiers)


def test_figures_part_the_rounds_time_into_model_and_control() -> None:
    _, finish = run(make_request(50, 4), make_tiers(100))
    figures = finish.figures
    assert figures.model_s == pytest.approx(10 * (0.0005 + 0.001))
    assert figures.control_s >= 0 and figures.lease_s >= 0
    assert 0 <= figures.control_round_p50_s <= figures.control_s
    assert figures.cached_by_tier == {0: 2, 1: 1}
    assert finish.usage.num_cached_tokens == 1


@pytest.mark.parametrize("percents", [(100,), (70,), (100, 100), (60, 85)])
@pytest.mark.parametrize("position", range(12))
def test_a_stop_id_ends_the_text_wherever_it_falls(percents: tuple[int, ...], position: int) -> None:
    stop = alone(position + 1)[-1]
    expected = alone(alone(20).index(stop) + 1)
    windows = (5,) * (len(percents) - 1)
    ids, finish = run(make_request(20, 4, frozenset({stop})), make_tiers(*percents), windows)
    assert ids == expected
    assert (finish.reason, finish.stop_id) == (FinishReason.STOP, stop)
    figures = finish.figures
    assert figures.committed == figures.accepted + figures.recovered + figures.bonus
    assert sum(figures.accepted_at) == figures.accepted


def test_a_stop_id_as_the_last_allowed_token_is_a_stop() -> None:
    ids, finish = run(make_request(5, 4, frozenset({alone(5)[-1]})), make_tiers(100))
    assert ids == alone(5)
    assert finish.reason is FinishReason.STOP


def test_nothing_drafted_is_seen_in_the_figures() -> None:
    tiers = make_tiers(100, faults=lambda kind: "none" if kind == "lease" else None)
    tiers[1].faults = lambda kind: None
    ids, finish = run(make_request(10, 4), tiers)
    assert ids == alone(10)
    assert finish.figures.drafted == 0
    assert finish.figures.acceptance_rate is None
    assert finish.figures.degraded_steps == 9  # the tenth token wants no draft


def test_lookahead_zero_leases_the_target_only() -> None:
    tiers = make_tiers(100, 100)
    _, finish = run(make_request(6, 0), tiers, (4,))
    assert [tier.num_leases for tier in tiers] == [0, 0, 1]
    assert finish.figures.degraded_steps == 0


def test_a_ladder_may_be_the_target_alone() -> None:
    assert run(make_request(7, 4), make_tiers())[0] == alone(7)


def test_events_name_origin_and_tier_of_each_token() -> None:
    events, _ = asyncio.run(collect(make_request(5, 4), make_tiers(100)))
    assert events[0].origins == (*[Origin.ACCEPTED] * 4, Origin.BONUS)
    assert events[0].tiers == (0, 0, 0, 0, 1)


def test_user_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="need 1 windows"):
        Ladder(make_tiers(100, 100), ())
    with pytest.raises(ValueError, match="max_tokens"):
        make_request(0)
    assert len(PROMPT) == len(np.asarray(make_request().prompt_ids))

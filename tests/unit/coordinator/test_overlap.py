"""Overlapped rounds: the text is the target's whatever becomes of an enumeration, and hits cost no round trip."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.pace import Pace
from cluster.coordinator.request import FinishReason
from cluster.coordinator.settings import OverlapSettings
from tests.unit.coordinator.fakes import (
    FAST,
    FakeTier,
    Faults,
    alone,
    check_clean,
    make_request,
    make_tiers,
    no_faults,
    run,
    script,
    target_model,
)

PASS_TICKS = 20  # an enumeration is there before
OVERLAPPED = replace(FAST, overlap=OverlapSettings(num_branches=16, num_guesses=2, num_tokens=4))
AHEAD_FAULTS = ("raise", "die", "stall", "forget", "error", "miss", "hang", "die_after")


def overlapping(*percents: int, faults: Faults = no_faults, pass_ticks: int = PASS_TICKS) -> list[FakeTier]:
    tiers = make_tiers(*percents, faults=faults)
    tiers[-1].pass_ticks = pass_ticks
    return tiers


@pytest.mark.parametrize("percent", [0, 50, 90, 100])
@pytest.mark.parametrize("lookahead", [1, 4, 16])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 20, 61])
def test_the_text_is_the_targets_own(percent: int, lookahead: int, max_tokens: int) -> None:
    ids, finish = run(make_request(max_tokens, lookahead), overlapping(percent), settings=OVERLAPPED)
    assert ids == alone(max_tokens)
    assert finish.reason is FinishReason.LENGTH


def test_a_perfect_drafter_hits_every_time_and_is_never_asked_for_another_draft() -> None:
    tiers = overlapping(100)
    ids, finish = run(make_request(61, 4), tiers, settings=OVERLAPPED)
    assert ids == alone(61)
    assert finish.figures.ahead["hit"] >= 10
    assert sum(finish.figures.ahead.values()) - finish.figures.ahead["hit"] <= 2  # at the end there is no room
    assert len(tiers[0].asked) == 1
    assert finish.figures.overlap_hit_rate is not None and finish.figures.overlap_hit_rate > 0.9


def test_a_drafter_that_is_always_wrong_misses_and_changes_nothing() -> None:
    tiers = overlapping(0)
    tiers[0].model = lambda prefix: (target_model(prefix) + 40) % 97
    ids, finish = run(make_request(20, 4), tiers, settings=OVERLAPPED)
    assert ids == alone(20)
    assert "hit" not in finish.figures.ahead and finish.figures.ahead["miss"] > 0


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32), percent=st.sampled_from([30, 80, 100]), lookahead=st.sampled_from([1, 3, 8]),
    branches=st.integers(1, 8), ahead_tokens=st.integers(1, 9), num_faults=st.integers(0, 8),
    max_tokens=st.integers(1, 50),
)
def test_stalls_losses_and_any_order_of_answers_change_no_token(
    seed: int, percent: int, lookahead: int, branches: int, ahead_tokens: int, num_faults: int, max_tokens: int
) -> None:
    chance = random.Random(seed)
    kinds = ("enumerate", "verify_ahead", "propose", "verify")
    faults: dict[str, dict[int, str]] = {kind: {} for kind in kinds}
    for _ in range(num_faults):
        kind = chance.choice(kinds)
        allowed = [f for f in AHEAD_FAULTS if kind != "verify" or f in ("die", "forget", "die_after")]
        if kind == "propose":
            allowed = ["raise", "die", "forget", "error", "empty", "lost", "revoke"]
        if kind == "verify" and len(faults["verify"]) >= 2:
            continue
        if kind == "verify_ahead":
            allowed = ["miss"] if len(faults["verify_ahead"]) >= 2 else ["miss", "die"]
        faults[kind][chance.randrange(12)] = chance.choice(allowed)
    by_tier = script(**faults)
    tiers = overlapping(percent, faults=by_tier, pass_ticks=chance.choice((0, 20)))
    for tier in tiers:
        tier.pauses = chance
    overlap = OverlapSettings(branches, 2, ahead_tokens)
    bounds = replace(FAST, overlap=overlap, max_target_moves=9)
    ids, finish = run(make_request(max_tokens, lookahead), tiers, settings=bounds)
    assert ids == alone(max_tokens)
    assert finish.reason is FinishReason.LENGTH


@pytest.mark.parametrize("fault", ["error"])
def test_a_target_that_fails_in_a_pass_begun_by_itself_fails_the_request(fault: str) -> None:
    from cluster.coordinator.errors import GenerationFailed

    tiers = overlapping(100, faults=script(verify_ahead={1: fault}))
    with pytest.raises(GenerationFailed):
        run(make_request(40, 4), tiers, settings=OVERLAPPED)


def test_a_stop_in_the_middle_of_an_overlap_ends_the_text_and_gives_everything_back() -> None:
    text = alone(40)
    stop = next(token for i, token in enumerate(text) if i >= 9 and token not in text[:i])
    ids, finish = run(make_request(40, 4, frozenset({stop})), make_tiers(100), settings=OVERLAPPED)
    assert ids == text[: text.index(stop) + 1]
    assert finish.reason is FinishReason.STOP


def test_a_reader_that_leaves_in_the_middle_of_an_overlap_frees_every_lease() -> None:
    tiers = overlapping(90)

    async def leave() -> None:
        stream = generate(make_request(60, 4), Ladder(tiers, (), OVERLAPPED))
        async for _ in stream:
            break
        await stream.aclose()

    asyncio.run(leave())
    check_clean(tiers)


def test_a_cancelled_request_in_the_middle_of_an_overlap_frees_every_lease() -> None:
    tiers = overlapping(90)
    for tier in tiers:
        tier.pauses = random.Random(3)

    async def consume() -> None:
        async for _ in generate(make_request(200, 4), Ladder(tiers, (), OVERLAPPED)):
            await asyncio.sleep(0)

    async def cancel() -> None:
        for ticks in range(5, 200, 7):
            task = asyncio.create_task(consume())
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            for tier in tiers:
                tier.last_round = 0
                tier.outcomes.clear()

    asyncio.run(cancel())
    check_clean(tiers)


def test_a_late_enumeration_costs_nothing_but_its_advantage() -> None:
    tiers = overlapping(100, faults=script(enumerate={0: "stall", 3: "stall"}))
    ids, finish = run(make_request(40, 4), tiers, settings=OVERLAPPED)
    assert ids == alone(40)
    assert finish.figures.ahead["late"] == 2


@pytest.mark.parametrize("bound_s", [math.inf, 0.001])
def test_only_enumerations_that_were_to_be_in_time_make_later_ones_end_earlier_when_they_are_late(
    bound_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(Pace, "ahead_s", lambda self, num_tokens: bound_s)
    monkeypatch.setattr(Pace, "note_punctual", lambda self, punctual: told.append(punctual))
    tiers = overlapping(100, faults=script(enumerate={0: "stall", 3: "stall"}))
    ids, finish = run(make_request(40, 4), tiers, settings=OVERLAPPED)
    assert ids == alone(40)
    assert finish.figures.ahead["late"] == 2
    assert told.count(False) == (0 if bound_s == math.inf else 2)
    assert True in told  # whatever was in time makes them end later again, bounded or not


def test_middle_tiers_keep_their_rounds_synchronous() -> None:
    tiers = overlapping(50, 90)
    ids, finish = run(make_request(40, 4), tiers, (6,), settings=OVERLAPPED)
    assert ids == alone(40)
    assert finish.figures.ahead == {}

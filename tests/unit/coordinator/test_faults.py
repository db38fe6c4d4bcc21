"""Losing anything below the target changes no token; losing targets moves on or fails cleanly."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.coordinator.errors import FailureCode, GenerationFailed
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, FinishReason
from tests.unit.coordinator.fakes import (
    FAST,
    FakeTier,
    alone,
    check_clean,
    collect,
    make_request,
    make_tiers,
    run,
    script,
)

N = 40


@pytest.mark.parametrize("fault", ["raise", "lost", "forget", "stall", "die", "revoke", "error"])
@pytest.mark.parametrize("percents", [(90,), (80, 90)])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_failing_draft_changes_no_token(fault: str, percents: tuple[int, ...], at: int) -> None:
    tiers = make_tiers(*percents)
    tiers[0].faults = script(propose={at: fault})
    ids, finish = run(make_request(N, 4), tiers, (6,) * (len(percents) - 1))
    assert ids == alone(N)
    assert finish.figures.drafted > 0
    assert bool(finish.figures.degraded) is not (fault == "revoke" or (fault == "forget" and at == 0))
    moved = fault in ("raise", "lost", "stall", "die", "revoke") or (fault == "error" and at == 0)
    assert finish.figures.lease_moves == int(moved)
    if moved:
        assert tiers[0].avoids[1] == {"0/0"}


@pytest.mark.parametrize("fault", ["stall", "die", "error", "raise"])
def test_a_draft_pool_that_always_fails_is_plain_decoding(fault: str) -> None:
    tiers = make_tiers(90)
    tiers[0].faults = lambda kind: fault if kind == "propose" else None
    ids, finish = run(make_request(N, 4), tiers, settings=replace(FAST, draft_timeout_s=0.01))
    assert ids == alone(N)
    assert finish.figures.drafted == 0
    assert finish.figures.degraded_steps == N - 1
    assert tiers[0].num_leases < N  # backoff


def test_a_pool_that_never_answers_costs_one_grace_period() -> None:
    tiers = make_tiers(90)
    tiers[0].faults = lambda kind: "hang" if kind == "lease" else None
    began = time.monotonic()
    ids, _ = run(make_request(N, 4), tiers)
    assert ids == alone(N)
    assert time.monotonic() - began < N * FAST.lease_grace_s / 2
    assert len(tiers[0].avoids) == 1


@pytest.mark.parametrize("fault", ["die", "die_after", "forget", "revoke"])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_lost_or_draining_target_leaves_the_same_text(fault: str, at: int) -> None:
    tiers = make_tiers(80)
    tiers[1].faults = script(verify={at: fault})
    ids, finish = run(make_request(N, 4), tiers)
    assert ids == alone(N)
    assert tiers[1].num_leases == (1 if fault == "forget" else 2)
    assert finish.figures.lease_moves == (0 if fault == "forget" else 1)


@pytest.mark.parametrize("fault", ["die", "die_after", "forget", "revoke", "error", "raise", "hang"])
@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("tier", [1, 2])
def test_a_lost_middle_tier_leaves_the_same_text(fault: str, at: int, tier: int) -> None:
    tiers = make_tiers(70, 80, 90)
    tiers[tier].faults = script(verify={at: fault})
    ids, finish = run(make_request(N, 3), tiers, (4, 8))
    assert ids == alone(N)
    assert finish.figures.drafted > 0


def test_without_a_middle_tier_the_one_below_feeds_the_target() -> None:
    tiers = make_tiers(100, 100)
    tiers[1].faults = lambda kind: "none" if kind == "lease" else None
    ids, finish = run(make_request(N, 4), tiers, (8,))
    assert ids == alone(N)
    assert set(finish.figures.accepted_by_tier) == {0}
    assert finish.figures.degraded_steps == 0  # it still speculates


def test_a_target_that_keeps_dying_fails_the_request_with_its_usage() -> None:
    tiers = make_tiers(90)
    calls = iter(range(1000))
    tiers[1].faults = lambda kind: "die" if kind == "verify" and next(calls) > 2 else None
    with pytest.raises(GenerationFailed, match="lost 4 times") as failed:
        run(make_request(N, 4), tiers)
    assert failed.value.code is FailureCode.UNAVAILABLE
    assert failed.value.finish is not None
    assert failed.value.finish.usage.num_completion_tokens > 0


@pytest.mark.parametrize(("fault", "message"), [("error", "NaN logits"), ("raise", "failed on this request")])
def test_an_error_of_the_target_is_one_clear_failure(fault: str, message: str) -> None:
    tiers = make_tiers(90)
    tiers[1].faults = script(verify={2: fault})
    with pytest.raises(GenerationFailed, match=message):
        run(make_request(N, 4), tiers)


def test_what_the_target_can_never_serve_is_the_requests_fault() -> None:
    tiers = make_tiers(90)
    tiers[1].faults = script(verify={0: "reject"})
    with pytest.raises(GenerationFailed, match="99 tokens exceed it") as failed:
        run(make_request(N, 4), tiers)
    assert failed.value.code is FailureCode.INVALID


def test_a_target_without_room_for_a_call_is_left_for_another() -> None:
    tiers = make_tiers(90)
    tiers[1].faults = script(verify={2: "full"})
    ids, finish = run(make_request(N, 4), tiers)
    assert ids == alone(N)
    assert finish.figures.lease_moves == 1


def test_a_middle_tier_without_room_for_a_call_is_done_without() -> None:
    tiers = make_tiers(90, 90)
    tiers[1].faults = script(verify={1: "full", 3: "full"})
    ids, _ = run(make_request(N, 4), tiers, (8,))
    assert ids == alone(N)


def test_targets_that_stay_without_room_are_exhaustion_not_loss() -> None:
    tiers = make_tiers(90)
    calls = iter(range(1000))
    tiers[1].faults = lambda kind: "full" if kind == "verify" and next(calls) > 2 else None
    with pytest.raises(GenerationFailed, match="every replica of the target model is full") as failed:
        run(make_request(N, 4), tiers)
    assert failed.value.code is FailureCode.EXHAUSTED


def test_no_target_in_time_is_exhaustion() -> None:
    tiers = make_tiers(90)
    tiers[1].faults = lambda kind: "none" if kind == "lease" else None
    short = type(FAST)(target_wait_s=0.03, backoff_s=0.005)
    with pytest.raises(GenerationFailed, match="no replica") as failed:
        run(make_request(N, 4), tiers, settings=short)
    assert failed.value.code is FailureCode.EXHAUSTED


def test_full_targets_refuse_a_new_sequence_at_once() -> None:
    tiers = make_tiers(90)
    tiers[1].faults = lambda kind: "full" if kind == "lease" else None
    patient = type(FAST)(target_wait_s=3600)
    with pytest.raises(GenerationFailed, match="every replica of the target model is full") as failed:
        run(make_request(N, 4), tiers, settings=patient)
    assert failed.value.code is FailureCode.EXHAUSTED


def test_a_sequence_that_lost_its_target_waits_for_a_place_at_full_ones() -> None:
    tiers = make_tiers(90)
    leases = iter(["", "full", "full", ""])
    tiers[1].faults = lambda kind: (next(leases) or None) if kind == "lease" else None
    verify = script(verify={2: "die"})
    plain = tiers[1].faults
    tiers[1].faults = lambda kind: plain(kind) if kind == "lease" else verify(kind)
    ids, finish = run(make_request(N, 4), tiers)
    assert ids == alone(N)
    assert finish.figures.lease_moves == 1


@pytest.mark.parametrize("hang", ["verify", "lease"])
def test_a_deadline_ends_the_stream_and_frees_everything(hang: str) -> None:
    tiers = make_tiers(90)
    tiers[1].faults = script(**{hang: {2 if hang == "verify" else 0: "hang"}})
    _, finish = run(make_request(N, 4, deadline=time.monotonic() + 0.1), tiers)
    assert finish.reason is FinishReason.DEADLINE


def test_closing_early_frees_everything_even_when_a_release_raises() -> None:
    tiers = make_tiers(80, 90)
    for tier in tiers:
        tier.release_raises = True

    async def leave() -> None:
        stream = generate(make_request(N, 4), Ladder(tiers, (6,), FAST))
        await anext(stream)
        assert [tier.open for tier in tiers] == [1, 1, 1]
        await stream.aclose()
        assert [tier.open for tier in tiers] == [0, 0, 0]

    asyncio.run(leave())


@pytest.mark.parametrize("hang_at", ["lease", "propose", "verify"])
@pytest.mark.parametrize("tier", [0, 1, 2])
def test_cancelling_at_any_wait_frees_everything(hang_at: str, tier: int) -> None:
    tiers = make_tiers(80, 90)
    fault = "stall" if hang_at == "propose" else "hang"
    tiers[tier].faults = lambda kind: fault if kind == hang_at else None
    slow = type(FAST)(draft_timeout_s=60, lease_grace_s=60, target_wait_s=60)

    async def leave() -> None:
        task = asyncio.create_task(collect(make_request(N * 5, 4), tiers, (6,), slow))
        await asyncio.sleep(0.02)
        cancelled = task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or not cancelled or task.exception() is None

    asyncio.run(leave())
    check_clean(tiers)


KINDS = {
    "lease": ["none"], "propose": ["raise", "lost", "forget", "stall", "die", "revoke", "error", "empty"],
    "verify": ["die", "die_after", "forget", "revoke"],
}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_schedule_of_faults_gives_the_target_alone_or_a_clean_error(data: st.DataObject) -> None:
    percents = data.draw(st.lists(st.integers(0, 100), max_size=3))
    windows = tuple(data.draw(st.integers(1, 9)) for _ in percents[1:])
    tiers = make_tiers(*percents)
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    rate = data.draw(st.sampled_from([0.05, 0.2, 0.5]))

    def faults_of(tier: FakeTier) -> None:
        def faults(kind: str) -> str | None:
            is_target = tier is tiers[-1]
            if rng.random() >= (rate / 5 if is_target else rate):
                return None
            middle = ["error", "raise"] if kind == "verify" and not is_target else []
            return rng.choice(KINDS[kind] + middle)

        tier.faults = faults

    for tier in tiers:
        faults_of(tier)
    max_tokens = data.draw(st.integers(1, 40))
    stop_ids = frozenset(data.draw(st.sets(st.sampled_from(alone(60)), max_size=2)))
    request = make_request(max_tokens, data.draw(st.integers(0, 9)), stop_ids)
    fast = type(FAST)(
        draft_timeout_s=0.002, catch_up_token_s=0.0, target_wait_s=0.2, lease_grace_s=0.01, backoff_s=0.0005,
        backoff_max_s=0.001, avoid_slow_s=0.001, max_target_moves=3,
    )

    async def go() -> tuple[list[int], Finish | None]:
        ids: list[int] = []
        try:
            async for item in generate(request, Ladder(tiers, windows, fast)):
                if isinstance(item, Finish):
                    return ids, item
                ids += item.token_ids.tolist()
        except GenerationFailed as error:
            return ids, error.finish
        raise AssertionError("no finish")

    ids, finish = asyncio.run(go())
    truth = alone(max_tokens)
    stops = [i for i, token in enumerate(truth) if token in stop_ids]
    expected = truth[: stops[0] + 1] if stops else truth
    assert finish is not None
    if finish.reason is FinishReason.ERROR:
        assert ids == expected[: len(ids)]
    else:
        assert ids == expected
    check_clean(tiers)

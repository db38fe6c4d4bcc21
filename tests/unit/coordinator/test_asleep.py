"""A draft pool scaled to none: rounds are plain at once, it is woken when that is worth it, and then drafts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from actors.messages import Origin, Verdict
from cluster.coordinator.control.controller import Controller
from cluster.coordinator.control.plan import ControlLimits
from cluster.coordinator.demand import Demand
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish
from tests.unit.coordinator.fakes import FAST, FakeLease, FakeTier, alone, check_clean, make_request, make_tiers

N = 60


class Sleepy:
    """A draft pool without a replica until it is asked for one, and then for `rounds` more rounds."""

    def __init__(self, tier: FakeTier, rounds: float) -> None:
        self.tier = tier
        self.asleep = True
        self.calls = 0
        self._rounds = rounds
        self._woken = asyncio.Event()

    async def lease(self, *args: Any, **kwargs: Any) -> FakeLease:
        self.calls += 1
        await self._woken.wait()
        return await self.tier.lease(*args, **kwargs)

    def round_over(self) -> None:
        self._rounds -= 1
        if self.calls and self._rounds <= 0:
            self.asleep = False
            self._woken.set()


async def written(pool: Sleepy, target: FakeTier, lookahead: int | None, controller: Controller | None = None,
                  demand: Demand | None = None) -> tuple[list[int], Finish]:
    ladder = Ladder(
        [pool, target], settings=FAST, controller=controller, demand=demand or Demand(),
        is_asleep=lambda index: index == 0 and pool.asleep,
    )
    ids: list[int] = []
    async for event in generate(make_request(N, lookahead), ladder):
        if isinstance(event, Finish):
            return ids, event
        ids += event.token_ids.tolist()
        pool.round_over()
        await asyncio.sleep(0)
    raise AssertionError("no finish")


def test_rounds_are_plain_at_once_and_drafted_when_the_pool_has_woken() -> None:
    async def main() -> None:
        draft, target = make_tiers(90)
        pool, demand = Sleepy(draft, 10), Demand()
        began = time.monotonic()
        ids, finish = await written(pool, target, 4, demand=demand)
        assert time.monotonic() - began < FAST.lease_grace_s  # nobody waited, not even the grace of a new lease
        assert ids == alone(N)
        assert 9 <= finish.figures.degraded["tier0:asleep"] <= 11
        assert 0 <= finish.figures.degraded_steps - finish.figures.degraded["tier0:asleep"] <= 1  # it woke
        assert demand.starved[0] == finish.figures.degraded_steps
        assert finish.figures.accepted > 20
        assert pool.calls == 1
        check_clean([draft, target])

    asyncio.run(main())


def test_the_last_replicas_lease_is_given_back_when_the_pool_goes_to_sleep() -> None:
    async def main() -> None:
        draft, target = make_tiers(90)
        pool = Sleepy(draft, 1)
        ladder = Ladder([pool, target], settings=FAST, is_asleep=lambda index: index == 0 and pool.asleep)
        ids: list[int] = []
        stream = generate(make_request(N, 4), ladder)
        held: list[FakeLease] = []
        original = draft.lease

        async def kept(*args: Any, **kwargs: Any) -> FakeLease:
            held.append(await original(*args, **kwargs))
            return held[-1]

        draft.lease = kept  # type: ignore[method-assign]
        async for event in stream:
            if isinstance(event, Finish):
                break
            ids += event.token_ids.tolist()
            pool.round_over()
            if held and len(ids) > 30 and not held[0].revoked:
                held[0].revoked, pool.asleep = True, True
                pool._woken.clear()
            await asyncio.sleep(0)
        assert ids == alone(N)
        assert held[0].released
        check_clean([draft, target])

    asyncio.run(main())


@pytest.mark.parametrize("pays", [True, False])
def test_the_controller_wakes_a_pool_only_for_what_it_expects_to_pay(pays: bool) -> None:
    async def main() -> None:
        draft, target = make_tiers(90)
        pool = Sleepy(draft, 1)
        controller = Controller(ControlLimits(num_tiers=2, max_lookahead=8))
        if not pays:
            told = controller.plan
            controller.plan = lambda sequence, now, remaining, most: told(  # type: ignore[method-assign]
                sequence, now, 1, most  # it finds no plan worth a draft
            )
        ids, finish = await written(pool, target, None, controller)
        assert ids == alone(N)
        assert bool(pool.calls) is pays
        assert bool(finish.figures.drafted) is pays

    asyncio.run(main())


def verdict(seconds: float, pass_s: float = 0.01) -> Verdict:
    return Verdict(
        np.array([1, 2], np.int32), 1, 4, Origin.RECOVERED, draft_seconds=seconds, draft_model_seconds=4 * pass_s,
        draft_pass_rows=1, draft_pass_seconds=pass_s,
    )


def test_a_draft_is_slow_by_its_pools_own_measure() -> None:
    demand = Demand()
    assert not demand.was_slow(0, verdict(0.045))
    assert demand.was_slow(0, verdict(0.15))  # it queued
    assert demand.was_slow(0, verdict(0.17, pass_s=0.04))  # it shared its passes
    assert not demand.was_slow(1, verdict(0.5, pass_s=0.1))  # another pool, which is slow anyway

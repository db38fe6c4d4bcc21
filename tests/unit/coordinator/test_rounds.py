"""Rounds go on while their tokens are handed out, but only one ahead, and their end reaches whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from actors.messages import Origin, Verdict
from actors.sampling.params import SamplingParams
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, GenerationRequest, TokenEvent
from cluster.coordinator.rounds import Rounds
from cluster.coordinator.sequence import Sequence
from tests.unit.coordinator.fakes import FAST, make_request, make_tiers

STOP = 99


class Climb:
    """Rounds that end when they are told to, each with one token, its number."""

    def __init__(self) -> None:
        self.num_begun = self.num_entered = 0
        self.observed: list[float] = []
        self.under_way: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def enter(self) -> None:
        self.num_entered += 1

    async def round(self) -> Verdict:
        self.num_begun += 1
        self.under_way = asyncio.get_running_loop().create_future()
        token = await self.under_way
        return Verdict(np.array([token], np.int32), 0, 0, Origin.PLAIN)

    def observe(self, verdict: Verdict, event: TokenEvent, wall_s: float) -> None:
        self.observed.append(wall_s)

    async def ends(self, token: int) -> None:
        """The round under way ends, and whatever follows from that happens."""
        self.under_way.set_result(token)
        await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(body: Callable[[Climb, Rounds, Sequence], Awaitable[None]], clock: Callable[[], float] = lambda: 0.0) -> None:
    async def main() -> None:
        climb: Any = Climb()
        prompt = np.array([1], np.int32)
        sequence = Sequence(GenerationRequest("s", prompt, SamplingParams(), max_tokens=4))
        async with asyncio.timeout(30):
            await body(climb, Rounds(climb, sequence, frozenset({STOP}), clock), sequence)

    asyncio.run(main())


def test_the_next_round_begins_before_anything_is_done_with_the_tokens_of_the_last() -> None:
    async def body(climb: Climb, rounds: Rounds, sequence: Sequence) -> None:
        asked = asyncio.ensure_future(rounds.next())
        await settled()
        climb.under_way.set_result(7)
        while climb.num_begun == 1:
            assert not asked.done()
            await asyncio.sleep(0)
        assert (await asked).event.token_ids.tolist() == [7]
        assert sequence.tokens.tolist() == [1, 7]
        await rounds.stop()

    run(body)


def test_only_one_round_is_made_ahead_of_whoever_asks() -> None:
    async def body(climb: Climb, rounds: Rounds, sequence: Sequence) -> None:
        await settled()
        assert climb.num_begun == 1
        await climb.ends(5)  # before anybody has asked
        assert (climb.num_begun, sequence.num_generated) == (1, 0)
        assert (await rounds.next()).event.token_ids.tolist() == [5]
        assert climb.num_begun == 2
        await climb.ends(6)
        assert (climb.num_begun, sequence.num_generated) == (2, 1)
        await rounds.stop()

    run(body)


def test_the_last_round_is_followed_by_none() -> None:
    async def body(climb: Climb, rounds: Rounds, sequence: Sequence) -> None:
        for number, token in enumerate((2, 3, STOP)):
            asked = asyncio.ensure_future(rounds.next())
            await settled()
            await climb.ends(token)
            assert (await asked).is_last == (token == STOP)
            assert climb.num_begun == min(number + 2, 3)
        await rounds.stop()

    run(body)


def test_the_time_of_a_round_has_no_gap_to_the_one_before() -> None:
    now = [0.0]

    async def body(climb: Climb, rounds: Rounds, sequence: Sequence) -> None:
        walls = []
        for ends_s in (3.0, 8.0):
            asked = asyncio.ensure_future(rounds.next())
            await settled()
            now[0] = ends_s
            await climb.ends(2)
            walls.append((await asked).wall_s)
        assert walls == climb.observed == [3.0, 5.0]
        await rounds.stop()

    run(body, lambda: now[0])


@pytest.mark.parametrize("asks_first", [True, False])
def test_what_ends_a_round_reaches_whoever_asks_for_it(asks_first: bool) -> None:
    async def body(climb: Climb, rounds: Rounds, sequence: Sequence) -> None:
        asked = asyncio.ensure_future(rounds.next()) if asks_first else None
        await settled()
        climb.under_way.set_exception(ValueError("the target is gone"))
        await settled()
        with pytest.raises(ValueError, match="the target is gone"):
            await (asked or rounds.next())
        await rounds.stop()

    run(body)


@pytest.mark.parametrize("asks_first", [True, False])
def test_nobody_waits_for_a_round_that_was_cancelled(asks_first: bool) -> None:
    async def body(climb: Climb, rounds: Rounds, sequence: Sequence) -> None:
        asked = asyncio.ensure_future(rounds.next()) if asks_first else None
        await settled()
        climb.under_way.cancel()
        await settled()
        with pytest.raises(asyncio.CancelledError):
            await (asked or rounds.next())
        await rounds.stop()

    run(body)


def test_what_a_request_waits_for_its_replicas_is_no_part_of_its_first_round() -> None:
    now = 0.0

    class Waits(Climb):
        async def enter(self) -> None:
            nonlocal now
            now += 5.0

    async def main() -> None:
        nonlocal now
        climb: Any = Waits()
        sequence = Sequence(GenerationRequest("s", np.array([1], np.int32), SamplingParams(), max_tokens=4))
        rounds = Rounds(climb, sequence, frozenset({STOP}), lambda: now)
        asked = asyncio.ensure_future(rounds.next())
        await settled()
        now += 1.0
        await climb.ends(7)
        assert ((await asked).wall_s, now) == (1.0, 6.0)
        await rounds.stop()

    asyncio.run(main())


def test_what_a_request_waits_for_its_replicas_is_told_apart() -> None:
    now = 0.0
    tiers = make_tiers(90)
    lease = tiers[-1].lease

    async def slowly(*args: Any, **kwargs: Any) -> Any:
        nonlocal now
        now += 5.0
        return await lease(*args, **kwargs)

    tiers[-1].lease = slowly  # type: ignore[method-assign]

    async def main() -> Finish:
        items = [item async for item in generate(make_request(8, 4), Ladder(tiers, (), FAST), lambda: now)]
        assert isinstance(items[-1], Finish)
        return items[-1]

    figures = asyncio.run(main()).figures
    assert (figures.lease_s, figures.wait_s, figures.control_s) == (5.0, 0.0, 0.0)

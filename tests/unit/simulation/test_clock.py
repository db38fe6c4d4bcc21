"""Simulated time passes at once, in order, and never without an end."""

from __future__ import annotations

import asyncio

import pytest

from cluster.simulation.clock import StandStill, VirtualLoop, run, running_loop


def test_hours_pass_in_order_and_to_the_instant() -> None:
    woken: list[tuple[float, str]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((running_loop().time(), name))

    async def main() -> float:
        await asyncio.gather(sleeper("late", 7200.0), sleeper("early", 0.25), sleeper("between", 3600.0))
        return running_loop().time()

    assert run(main()) == pytest.approx(7200.0)
    assert [name for _, name in woken] == ["early", "between", "late"]
    assert [at for at, _ in woken] == pytest.approx([0.25, 3600.0, 7200.0])


def test_timeouts_end_in_simulated_time() -> None:
    async def main() -> float:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(running_loop().create_future(), timeout=300.0)
        return running_loop().time()

    assert run(main()) == pytest.approx(300.0)


def test_what_waits_for_the_end_of_an_instant_sees_all_of_it() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        loop = running_loop()
        loop.call_later(1.0, lambda: loop.at_rest(lambda: seen.append(f"rest at {loop.time():g}")))

        async def chain(left: int) -> None:
            await asyncio.sleep(1.0)
            for _ in range(left):
                await asyncio.sleep(0)
            seen.append("event")

        await asyncio.gather(chain(1), chain(7))
        await asyncio.sleep(1.0)
        return seen

    assert run(main()) == ["event", "event", "rest at 1"]


def test_a_wait_without_an_end_is_an_error() -> None:
    async def main() -> None:
        await running_loop().create_future()

    with pytest.raises(StandStill, match="everything waits"):
        run(main())


def test_replicas_refuse_a_loop_that_takes_real_time() -> None:
    async def main() -> VirtualLoop:
        return running_loop()

    with pytest.raises(RuntimeError, match="simulated time only"):
        asyncio.run(main())

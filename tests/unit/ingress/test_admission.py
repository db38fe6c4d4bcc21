"""Requests run, wait their turn, or are refused; none waits without a bound."""

from __future__ import annotations

import asyncio

import pytest

from cluster.ingress.admission import Admission
from cluster.ingress.errors import QueueFull


async def hold(admission: Admission, until: asyncio.Event) -> None:
    async with admission.slot():
        await until.wait()


def test_excess_is_refused_at_once_and_a_turn_comes_in_order() -> None:
    async def main() -> None:
        admission, gate = Admission(max_running=2, max_waiting=1, max_wait_s=60), asyncio.Event()
        holders = [asyncio.create_task(hold(admission, gate)) for _ in range(3)]
        await asyncio.sleep(0)
        assert (admission.num_running, admission.num_waiting) == (2, 1)
        with pytest.raises(QueueFull) as full:
            await hold(admission, gate)
        assert full.value.num_waiting == 1
        gate.set()
        await asyncio.gather(*holders)
        assert (admission.num_running, admission.num_waiting) == (0, 0)

    asyncio.run(main())


def test_a_request_whose_turn_does_not_come_is_refused_and_leaves_no_trace() -> None:
    async def main() -> None:
        admission, gate = Admission(max_running=1, max_waiting=9, max_wait_s=0.02), asyncio.Event()
        first = asyncio.create_task(hold(admission, gate))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await hold(admission, gate)
        assert (admission.num_running, admission.num_waiting) == (1, 0)
        gate.set()
        await first
        await hold(admission, gate)

    asyncio.run(main())


def test_a_cancelled_request_gives_its_place_back() -> None:
    async def main() -> None:
        admission, gate = Admission(max_running=1, max_waiting=1, max_wait_s=60), asyncio.Event()
        tasks = [asyncio.create_task(hold(admission, gate)) for _ in range(2)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (admission.num_running, admission.num_waiting) == (0, 0)
        gate.set()
        await hold(admission, gate)

    asyncio.run(main())

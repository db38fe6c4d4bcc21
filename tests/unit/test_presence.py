"""A pool can wait for the end of a sequence, and an unattended one ends by itself."""

from __future__ import annotations

import asyncio

from actors.presence import Presence


def test_a_closed_sequence_lets_its_waiter_go_on() -> None:
    async def run() -> bool:
        presence = Presence(idle_timeout_s=60)
        presence.attend("a")
        waiter = asyncio.create_task(presence.ended("a"))
        await asyncio.sleep(0)
        presence.end("a")
        return await waiter

    assert asyncio.run(run())


def test_a_sequence_that_ends_before_anybody_waits_for_it_lets_a_late_waiter_go_on() -> None:
    async def run() -> bool:
        presence = Presence(idle_timeout_s=60)
        presence.attend("a")
        presence.end("a")
        async with asyncio.timeout(5):
            return await presence.ended("a")

    assert asyncio.run(run())


def test_a_sequence_that_nobody_calls_ends_and_a_called_one_does_not() -> None:
    async def run() -> tuple[bool, bool]:
        presence = Presence(idle_timeout_s=1.0)
        presence.attend("idle")
        presence.attend("busy")
        idle, busy = asyncio.create_task(presence.ended("idle")), asyncio.create_task(presence.ended("busy"))
        for _ in range(150):
            presence.begin("busy")
            presence.finish("busy")
            await asyncio.sleep(0.01)
        presence.end_all()
        return await idle, await busy

    assert asyncio.run(run()) == (False, True)


def test_a_sequence_with_a_call_under_way_is_never_idle() -> None:
    async def run() -> bool:
        presence = Presence(idle_timeout_s=0.05)
        presence.begin("a")
        presence.begin("a")
        presence.attend("a")
        waiter = asyncio.create_task(presence.ended("a"))
        presence.finish("a")
        await asyncio.sleep(0.3)
        assert not waiter.done()
        presence.finish("a")
        return await waiter

    assert asyncio.run(run()) is False  # nobody called any more


def test_a_call_that_ends_after_the_close_does_not_revive_the_sequence() -> None:
    presence = Presence(idle_timeout_s=60)
    presence.begin("a")
    presence.end("a")
    presence.finish("a")
    assert presence._last_call_s == presence._num_calls == {}

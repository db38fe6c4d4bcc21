"""A pool can wait for the end of a sequence, and an unattended one ends by itself."""

from __future__ import annotations

import asyncio

import pytest

from actors.presence import NotHeld, Presence


def test_a_closed_sequence_lets_its_waiter_go_on() -> None:
    async def run() -> bool:
        presence = Presence(idle_timeout_s=60)
        presence.attend("a", "lease")
        waiter = asyncio.create_task(presence.ended("a", "lease"))
        await asyncio.sleep(0)
        presence.end("a")
        return await waiter

    assert asyncio.run(run())


def test_a_sequence_that_ends_before_anybody_waits_for_it_lets_a_late_waiter_go_on() -> None:
    async def run() -> bool:
        presence = Presence(idle_timeout_s=60)
        presence.attend("a", "lease")
        presence.end("a")
        async with asyncio.timeout(5):
            return await presence.ended("a", "lease")

    assert asyncio.run(run())


def test_a_sequence_that_nobody_calls_ends_and_a_called_one_does_not() -> None:
    async def run() -> tuple[bool, bool]:
        presence = Presence(idle_timeout_s=1.0)
        presence.attend("idle", "lease")
        presence.attend("busy", "lease")
        idle, busy = (asyncio.create_task(presence.ended(name, "lease")) for name in ("idle", "busy"))
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
        presence.attend("a", "lease")
        waiter = asyncio.create_task(presence.ended("a", "lease"))
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
    assert presence._held == presence._num_calls == {}


def test_a_call_after_the_end_of_the_lease_is_refused_and_one_for_the_next_lease_is_not() -> None:
    presence = Presence(idle_timeout_s=60)
    with pytest.raises(NotHeld):
        presence.check("a")
    presence.attend("a", "first")
    presence.check("a")
    presence.end("a")
    with pytest.raises(NotHeld):
        presence.check("a")
    presence.attend("a", "second")
    presence.check("a")


def test_a_second_lease_ends_the_first_and_outlives_its_late_close() -> None:
    async def run() -> None:
        presence = Presence(idle_timeout_s=60)
        presence.attend("a", "first")
        waiter = asyncio.create_task(presence.ended("a", "first"))
        await asyncio.sleep(0)
        presence.attend("a", "second")
        assert await waiter
        assert await presence.ended("a", "first")
        assert not presence.is_for("a", "first")
        assert presence.is_for("a", "second")

    asyncio.run(run())


def test_a_sequence_ends_soon_after_the_connection_over_which_it_was_called_for() -> None:
    async def run() -> None:
        presence = Presence(idle_timeout_s=60, left_timeout_s=0.05)
        mine, others = object(), object()
        for name, caller in (("a", mine), ("under way", mine), ("b", others)):
            presence.attend(name, "lease")
            presence.begin(name, caller)
            if name != "under way":  # its answer can be sent to nobody
                presence.finish(name)
        waiters = {name: asyncio.create_task(presence.ended(name, "lease")) for name in ("a", "under way", "b")}
        await asyncio.sleep(0.1)
        assert not any(waiter.done() for waiter in waiters.values())
        assert presence.left(mine) == 2
        async with asyncio.timeout(5):
            assert await waiters["a"] is await waiters["under way"] is False
        assert not waiters["b"].done()
        presence.end("b")
        assert await waiters["b"]

    asyncio.run(run())


def test_a_call_over_another_connection_keeps_the_sequence() -> None:
    async def run() -> None:
        presence = Presence(idle_timeout_s=60, left_timeout_s=0.2)
        first, second = object(), object()
        presence.attend("a", "lease")
        presence.begin("a", first)
        presence.finish("a")
        waiter = asyncio.create_task(presence.ended("a", "lease"))
        await asyncio.sleep(0)
        assert presence.left(first) == 1
        await asyncio.sleep(0)
        presence.begin("a", second)
        presence.finish("a")
        assert presence.left(first) == 0
        await asyncio.sleep(0.4)
        assert not waiter.done()
        presence.end("a")
        assert await waiter

    asyncio.run(run())


def test_a_new_lease_does_not_end_with_the_connection_of_the_former_one() -> None:
    async def run() -> None:
        presence = Presence(idle_timeout_s=60, left_timeout_s=0.05)
        caller = object()
        presence.attend("a", "first")
        presence.begin("a", caller)
        presence.left(caller)
        presence.attend("a", "second")
        assert await presence.ended("a", "first")
        waiter = asyncio.create_task(presence.ended("a", "second"))
        await asyncio.sleep(0.2)
        assert not waiter.done()
        presence.end("a")
        assert await waiter

    asyncio.run(run())

"""A stream and its reader do not wait for each other, and neither outlives the other for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import pytest

from cluster.ingress.outflow import Outflow


def joined(first: list[int], later: list[int]) -> list[int]:
    return [*first, *later]


class Source:
    """Gives lists of one number and remembers how far it came and how it ended."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count = count
        self.error = error
        self.given = 0
        self.freed = False

    async def stream(self) -> AsyncGenerator[list[int], None]:
        try:
            for number in range(self.count):
                await asyncio.sleep(0)
                self.given += 1
                yield [number]
            if self.error is not None:
                raise self.error
        finally:
            await asyncio.sleep(0)
            self.freed = True


def outflow(source: Source, stall_s: float = 600, ahead_items: int = 4) -> AsyncGenerator[list[int], None]:
    return Outflow(source.stream(), joined, stall_s=stall_s, ahead_items=ahead_items).items()


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await body()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("count", [0, 1, 3, 50])
@pytest.mark.parametrize("slow", [False, True])
def test_a_reader_gets_everything_in_order_however_slow_it_is(count: int, slow: bool) -> None:
    async def body() -> None:
        source = Source(count)
        got: list[list[int]] = []
        async for item in outflow(source):
            got.append(item)
            for _ in range(20 if slow else 0):
                await asyncio.sleep(0)
        assert [number for item in got for number in item] == list(range(count))
        assert all(len(item) <= 4 for item in got)
        assert source.freed
        if slow and count == 50:
            assert len(got) < 25  # fewer and larger

    run(body)


def test_a_stream_runs_ahead_of_its_reader_up_to_a_bound() -> None:
    async def body() -> None:
        source = Source(50)
        async with aclosing(outflow(source)) as items:
            assert await anext(items) == [0]
            await until(lambda: source.given >= 5)
            for _ in range(100):
                await asyncio.sleep(0)
            assert source.given == 5  # four wait, and none is begun before one is taken
            assert await anext(items) == [1, 2, 3, 4]
        assert source.freed

    run(body)


def test_an_error_comes_after_everything_before_it() -> None:
    async def body() -> None:
        source = Source(3, ValueError("broken"))
        got: list[int] = []

        async def read() -> None:
            async for item in outflow(source):
                got.extend(item)

        with pytest.raises(ValueError, match="broken"):
            await read()
        assert got == [0, 1, 2]
        assert source.freed

    run(body)


def test_a_reader_that_leaves_ends_the_stream() -> None:
    async def body() -> None:
        source = Source(10**9)
        async with aclosing(outflow(source)) as items:
            await anext(items)
        assert source.freed

    run(body)


def test_a_reader_cancelled_while_it_waits_ends_the_stream() -> None:
    async def body() -> None:
        freed: list[bool] = []

        async def silent() -> AsyncGenerator[list[int], None]:
            try:
                await asyncio.Event().wait()
                yield []
            finally:
                freed.append(True)

        async def read() -> None:
            async with aclosing(Outflow(silent(), joined).items()) as items:
                await anext(items)

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        reading.cancel()
        await asyncio.wait({reading})
        assert reading.cancelled()
        assert freed == [True]

    run(body)


def test_a_stream_whose_reader_never_comes_back_frees_what_it_holds() -> None:
    async def body() -> None:
        source = Source(10**9)
        items = outflow(source, stall_s=0.02)
        await anext(items)
        await until(lambda: source.freed)
        with pytest.raises(TimeoutError, match="not read for 0.02 s"):
            await anext(items)

    run(body)


def test_a_finished_stream_waits_for_a_slow_reader() -> None:
    async def body() -> None:
        source = Source(2)
        items = outflow(source, stall_s=0.02)
        got = await anext(items)
        await until(lambda: source.freed)
        await asyncio.sleep(0.05)
        assert [*got, *[number async for item in items for number in item]] == [0, 1]

    run(body)

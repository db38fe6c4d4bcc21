"""A client's process that begins streams and waits for its end: `python -m cluster.bench.chaos.leaver ADDRESS`."""

from __future__ import annotations

import asyncio
import itertools
import sys

from cluster.bench.chaos.load import Ask, asks, stub_of

NUM_STREAMS = 3
MAX_TOKENS = 250  # outlasts the bench's patience with it


async def leave(address: str) -> None:
    """Say so when every stream has spoken, then go on reading."""
    async with stub_of(address) as stub:
        spoken = asyncio.Semaphore(0)

        async def read(ask: Ask) -> None:
            async for chunk in stub.GenerateStream(ask.message(), timeout=60.0):
                if chunk.tokens:
                    spoken.release()
            await asyncio.Event().wait()

        readers = [asyncio.create_task(read(ask)) for ask in itertools.islice(asks(MAX_TOKENS), NUM_STREAMS)]
        for _ in readers:
            await spoken.acquire()
        print("spoken", flush=True)
        await asyncio.gather(*readers)


if __name__ == "__main__":
    asyncio.run(leave(sys.argv[1]))

"""One request from prompt to finish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from cluster.coordinator.climb import Climb
from cluster.coordinator.errors import DeadlinePassed, GenerationFailed
from cluster.coordinator.figures import FigureCounter
from cluster.coordinator.hold import Clock
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, FinishReason, GenerationRequest, TokenEvent, Usage
from cluster.coordinator.rounds import Rounds
from cluster.coordinator.sequence import Sequence

_closing: set[asyncio.Task[None]] = set()  # the event loop itself keeps only weak references


async def generate(
    request: GenerationRequest, ladder: Ladder, clock: Clock = time.monotonic,
    figures: FigureCounter | None = None,
) -> AsyncGenerator[TokenEvent | Finish, None]:
    """Yield committed blocks as they are decided, then one `Finish`.

    Close the generator early (`aclose`) to stop: every lease is given back, as it is before the
    `Finish` and after an error. Raises `GenerationFailed`, with the usage so far in its `finish`.
    A caller that may stop early and wants the figures passes its own counter.
    """
    sequence = Sequence(request)
    counter = figures or FigureCounter(request.request_id)
    climb = Climb(ladder, request, sequence, counter, clock)

    def finish(reason: FinishReason, stop_id: int | None = None) -> Finish:
        figures = counter.snapshot()
        num_cached = figures.cached_by_tier.get(len(ladder.tiers) - 1, 0)
        return Finish(reason, Usage(len(request.prompt_ids), sequence.num_generated, num_cached), figures, stop_id)

    rounds = Rounds(climb, sequence, request.stop_ids, clock)
    try:
        while True:
            try:
                decided = await rounds.next()
            except DeadlinePassed:
                await _close(climb)
                yield finish(FinishReason.DEADLINE)
                return
            event = decided.event
            counter.count_round(decided.verdict, event, decided.wall_s)
            if decided.is_last:
                await _close(climb)  # before yielding: the client may read slowly or never come back
            yield event
            if event.ends_with_stop:
                yield finish(FinishReason.STOP, int(event.token_ids[-1]))
            elif decided.is_last:
                yield finish(FinishReason.LENGTH)
            if decided.is_last:
                return
    except GenerationFailed as error:
        error.finish = finish(FinishReason.ERROR)
        raise
    finally:
        await _close(climb, rounds)


async def _close(climb: Climb, rounds: Rounds | None = None) -> None:
    """Give the leases back even when this task is cancelled meanwhile; first a cancelled round must have ended."""
    task = asyncio.create_task(_end(climb, rounds))
    _closing.add(task)
    task.add_done_callback(_closing.discard)
    await asyncio.shield(task)


async def _end(climb: Climb, rounds: Rounds | None) -> None:
    if rounds is not None:
        await rounds.stop()
    await climb.close()

"""One request from prompt to finish, in synchronous rounds: propose, verify, commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from actors.messages import Origin, Verdict
from cluster.coordinator.climb import Climb
from cluster.coordinator.errors import DeadlinePassed, GenerationFailed
from cluster.coordinator.figures import FigureCounter
from cluster.coordinator.hold import Clock
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, FinishReason, GenerationRequest, TokenEvent, Usage
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

    async def next_round() -> tuple[Verdict, float]:
        began = clock()
        return await climb.round(), clock() - began

    upcoming = asyncio.ensure_future(next_round())
    try:
        while True:
            try:
                verdict, wall_s = await upcoming
            except DeadlinePassed:
                await _close(climb)
                yield finish(FinishReason.DEADLINE)
                return
            event = cut(verdict, sequence.remaining, request.stop_ids)
            sequence.commit(event.token_ids)
            climb.observe(wall_s)
            ended = event.ends_with_stop or sequence.remaining == 0
            if ended:
                await _close(climb)  # before yielding: the client may read slowly or never come back
            else:  # nor does the next round wait for whatever is done with this one's tokens
                upcoming = asyncio.ensure_future(next_round())
                await asyncio.sleep(0)  # it makes its first call,
                await asyncio.sleep(0)  # which leaves with those of the sequences that were answered together with this
            counter.count_round(verdict, event, wall_s)
            yield event
            if event.ends_with_stop:
                yield finish(FinishReason.STOP, int(event.token_ids[-1]))
            elif ended:
                yield finish(FinishReason.LENGTH)
            if ended:
                return
    except GenerationFailed as error:
        error.finish = finish(FinishReason.ERROR)
        raise
    finally:
        upcoming.cancel()
        await _close(climb, upcoming)


def cut(verdict: Verdict, max_tokens: int, stop_ids: frozenset[int]) -> TokenEvent:
    """What is committed of a verdict: up to and with the first stop id, at most `max_tokens`."""
    ids = verdict.tokens[:max_tokens]
    stop_at = next((i for i, token in enumerate(ids.tolist()) if token in stop_ids), None)
    if stop_at is not None:
        ids = ids[: stop_at + 1]
    length = len(ids)
    path = verdict.path if verdict.path is not None else range(verdict.num_accepted)
    proposers = tuple(verdict.draft_tiers[node] for node in path if node < len(verdict.draft_tiers))
    proposers += (0,) * (verdict.num_accepted - len(proposers))
    return TokenEvent(
        token_ids=ids,
        origins=((Origin.ACCEPTED,) * verdict.num_accepted + (verdict.last,) * verdict.num_own)[:length],
        tiers=(*proposers, *(verdict.tier,) * verdict.num_own)[:length],
        logprobs=None if verdict.logprobs is None else verdict.logprobs[:length],
        ends_with_stop=stop_at is not None,
    )


async def _close(climb: Climb, upcoming: asyncio.Future[Any] | None = None) -> None:
    """Give the leases back even when this task is cancelled meanwhile; first a cancelled round must have ended."""
    task = asyncio.create_task(_end(climb, upcoming))
    _closing.add(task)
    task.add_done_callback(_closing.discard)
    await asyncio.shield(task)


async def _end(climb: Climb, upcoming: asyncio.Future[Any] | None) -> None:
    if upcoming is not None:
        await asyncio.wait({upcoming})
        if not upcoming.cancelled():
            upcoming.exception()  # seen, also when nobody asks for that round any more
    await climb.close()

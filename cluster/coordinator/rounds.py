"""The rounds of a request, in a task of their own: none waits for what is done with the tokens of the one before."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from actors.messages import Origin, Verdict
from cluster.coordinator.climb import Climb
from cluster.coordinator.hold import Clock
from cluster.coordinator.request import TokenEvent
from cluster.coordinator.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Decided:
    """A committed round."""

    verdict: Verdict
    event: TokenEvent  # what was committed of it
    wall_s: float  # since the verdict before it was committed
    is_last: bool


class Rounds:
    """Makes one round after the other, at most one ahead of whoever asks for them."""

    def __init__(self, climb: Climb, sequence: Sequence, stop_ids: frozenset[int], clock: Clock) -> None:
        self._climb = climb
        self._sequence = sequence
        self._stop_ids = stop_ids
        self._clock = clock
        self._answer: asyncio.Future[Decided] | None = None  # somebody asks for the next round
        self._asked = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    async def next(self) -> Decided:
        """The next round. Raises what `Climb.round` does; after that, or the last round, it must not be asked again."""
        answer: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
        if self._task.done():  # the round was cancelled under whoever makes it
            answer.cancel()
        self._answer = answer
        self._asked.set()
        decided = await answer
        await asyncio.sleep(0)  # the next round's first call leaves before anything is done with this one's tokens
        return decided

    async def stop(self) -> None:
        """Make no more of them; returns when the one under way has ended."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # seen: perhaps nobody asked for that round any more

    async def _run(self) -> None:
        try:
            await self._climb.enter()
            began_s = self._clock()
            while True:
                verdict = await self._climb.round()
                wall_s = self._clock() - began_s
                await self._asked.wait()
                began_s = self._clock()  # of the next round: whatever is done from here on is in its time
                event = cut(verdict, self._sequence.remaining, self._stop_ids)
                self._sequence.commit(event.token_ids)
                self._climb.observe(verdict, event, wall_s)
                is_last = event.ends_with_stop or self._sequence.remaining == 0
                self._tell(Decided(verdict, event, wall_s, is_last))
                if is_last:
                    return
        except asyncio.CancelledError:
            if self._answer is not None:  # whoever asks shares the fate of a round that was cancelled under it
                self._answer.cancel()
            raise
        except Exception as error:  # to whoever asks
            await self._asked.wait()
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(error)

    def _tell(self, decided: Decided) -> None:
        self._asked.clear()
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(decided)


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

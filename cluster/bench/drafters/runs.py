"""One answer of one ladder, and how long it took."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass

from actors.messages import Ids
from actors.sampling.params import SamplingParams
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, GenerationRequest, SpeculationFigures


@dataclass(frozen=True, slots=True)
class Ask:
    """One question, as ids."""

    category: str
    prompt: Ids
    number: int  # of the question, from 0


@dataclass(frozen=True, slots=True)
class Run:
    """One answer. Rounds are passes of the target."""

    category: str
    number: int
    ids: tuple[int, ...]
    figures: SpeculationFigures
    steady_s: float  # from the end of the first round on: the prefill is left out
    steady_tokens: int  # committed in that time; 0: the answer ended with its first round
    logprobs: tuple[float, ...] = ()  # of `ids` under the target's unmodified softmax, if they were asked for

    @property
    def seconds_per_token(self) -> float | None:
        """None where nothing came after the first round."""
        return self.steady_s / self.steady_tokens if self.steady_tokens else None


def run(
    ask: Ask, ladder: Ladder, sampling: SamplingParams, num_tokens: int, lookahead: int, stop_ids: frozenset[int]
) -> Run:
    """At most `num_tokens` tokens, up to and with a stop id."""
    request = GenerationRequest(
        request_id=uuid.uuid4().hex, prompt_ids=ask.prompt, sampling=sampling, max_tokens=num_tokens,
        stop_ids=stop_ids, lookahead=lookahead,
    )
    return asyncio.run(_run(ask, request, ladder))


async def _run(ask: Ask, request: GenerationRequest, ladder: Ladder) -> Run:
    ids: list[int] = []
    logprobs: list[float] = []
    first: tuple[float, int] | None = None  # when the first round ended, and its tokens
    now = 0.0
    async for event in generate(request, ladder):
        if isinstance(event, Finish):
            break
        now = time.perf_counter()
        ids += event.token_ids.tolist()
        logprobs += [one.logprob for one in event.logprobs or ()]
        first = first or (now, len(ids))
    else:
        raise RuntimeError("a generation ended without its finish")
    assert first is not None
    return Run(
        ask.category, ask.number, tuple(ids), event.figures, now - first[0], len(ids) - first[1], tuple(logprobs)
    )

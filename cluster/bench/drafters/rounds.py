"""What single rounds of a ladder cost and bring, read off the verdicts as they are counted."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from statistics import median

from actors.messages import Verdict
from actors.sampling.params import SamplingParams
from cluster.bench.drafters.runs import Ask
from cluster.coordinator.control.acceptance import SMOOTH
from cluster.coordinator.figures import FigureCounter
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import GenerationRequest, TokenEvent


@dataclass(frozen=True, slots=True)
class Round:
    """One verify pass of the target. Seconds are wall time."""

    num_asked: int  # draft tokens that were asked for
    num_draft: int  # that came
    num_accepted: int
    draft_s: float  # of the draft, queue included
    pass_rows: int
    pass_s: float  # of the target's pass
    wall_s: float  # of all of it
    draft_error: str | None = None


class _Watching(FigureCounter):
    """Keeps every round of a request for `num_tokens` tokens that asks for `lookahead` draft tokens a round."""

    def __init__(self, request_id: str, num_tokens: int, lookahead: int) -> None:
        super().__init__(request_id)
        self.rounds: list[Round] = []
        self._remaining = num_tokens
        self._lookahead = lookahead

    def count_round(self, verdict: Verdict, event: TokenEvent, wall_s: float) -> None:
        """As it is, and keep it."""
        super().count_round(verdict, event, wall_s)
        asked = max(0, min(self._lookahead, self._remaining - 1))
        self._remaining -= len(event.token_ids)
        self.rounds.append(Round(
            asked, verdict.num_draft, verdict.num_accepted, verdict.draft_seconds, verdict.pass_rows,
            verdict.pass_seconds, wall_s, verdict.draft_error,
        ))


def watch(
    ask: Ask, ladder: Ladder, sampling: SamplingParams, num_tokens: int, lookahead: int, stop_ids: frozenset[int]
) -> list[Round]:
    """The rounds of one answer but for the first, which holds the prefill."""
    request = GenerationRequest(
        request_id=uuid.uuid4().hex, prompt_ids=ask.prompt, sampling=sampling, max_tokens=num_tokens,
        stop_ids=stop_ids, lookahead=lookahead,
    )
    counter = _Watching(request.request_id, num_tokens, lookahead)

    async def run() -> None:
        async for _ in generate(request, ladder, figures=counter):
            pass

    asyncio.run(run())
    return counter.rounds[1:]


def conditional(rounds: list[Round], longest: int) -> tuple[float, ...]:
    """[longest] how likely the token at each position is to be accepted, given that those before it were.

    A token that was asked for and did not come counts as refused: look-up drafters often have none. As the controller
    has it, a position leans on the one before it, as on `SMOOTH` tries.
    """
    hits, tries = [0] * longest, [0] * longest
    for one in rounds:
        for i in range(min(one.num_asked, one.num_accepted + 1, longest)):
            tries[i] += 1
            hits[i] += one.num_accepted > i
    level = sum(hits) / sum(tries) if any(tries) else 0.0
    rates = []
    for hit, tried in zip(hits, tries, strict=True):
        level = (hit + SMOOTH * level) / (tried + SMOOTH)
        rates.append(level)
    return tuple(rates)


def draft_cost(rounds: list[Round]) -> tuple[float, float]:
    """Seconds of a draft, as (fixed, per token), from the medians of its shortest and its longest lengths.

    A drafter that makes all tokens in one pass has only the first. (0, 0) for no drafts at all.
    """
    by_length: dict[int, list[float]] = {}
    for one in rounds:
        if one.num_draft:
            by_length.setdefault(one.num_draft, []).append(one.draft_s)
    if not by_length:
        return 0.0, 0.0
    short, long = min(by_length), max(by_length)
    least, most = median(by_length[short]), median(by_length[long])
    per_token = max(0.0, (most - least) / (long - short)) if long > short else 0.0
    return max(0.0, least - per_token * short), per_token


def overhead(rounds: list[Round]) -> float:
    """Median seconds of a round that are neither drafting nor the target's pass."""
    return median(max(0.0, one.wall_s - one.draft_s - one.pass_s) for one in rounds) if rounds else 0.0

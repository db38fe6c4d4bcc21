"""Our ladder in one process: drafter and verifier under the coordinator that serves requests."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass

from actors.drafters.base import Drafter
from actors.messages import Ids
from actors.sampling.params import SamplingParams
from actors.verifier import Verifier
from cluster.bench.local import LocalTier
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, GenerationRequest


@dataclass(frozen=True, slots=True)
class Generated:
    """One greedy answer. Rounds are passes of the target."""

    ids: tuple[int, ...]
    num_rounds: int
    seconds_per_token: float  # from the end of the first round on: the prefill is left out
    num_drafted: int = 0
    num_accepted: int = 0

    @property
    def mat(self) -> float:
        """Mean committed tokens per round."""
        return len(self.ids) / self.num_rounds


def climb(drafter: Drafter | None, verifier: Verifier, prompt: Ids, num_tokens: int, lookahead: int) -> Generated:
    """Greedy, `num_tokens` tokens, `lookahead` draft tokens a round; without a drafter, plain steps."""
    tiers = [*([] if drafter is None else [LocalTier(drafter)]), LocalTier(verifier)]
    request = GenerationRequest(
        request_id=uuid.uuid4().hex, prompt_ids=prompt, sampling=SamplingParams(temperature=0.0),
        max_tokens=num_tokens, lookahead=lookahead if drafter is not None else 0,
    )
    return asyncio.run(_climb(request, Ladder(tiers)))


async def _climb(request: GenerationRequest, ladder: Ladder) -> Generated:
    ids: list[int] = []
    first: tuple[float, int] | None = None  # when the first round ended, and its tokens
    now = 0.0
    async for event in generate(request, ladder):
        if isinstance(event, Finish):
            figures = event.figures
            break
        now = time.perf_counter()
        ids += event.token_ids.tolist()
        first = first or (now, len(ids))
    if first is None or len(ids) == first[1]:
        raise ValueError("the answer ended with its first round: ask for more tokens")
    if figures.degraded:
        raise RuntimeError(f"the ladder did not run as asked: {dict(figures.degraded)}")
    return Generated(
        tuple(ids), figures.rounds, (now - first[0]) / (len(ids) - first[1]), figures.drafted, figures.accepted
    )

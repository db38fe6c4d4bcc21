"""Real engines and coordinator over emulated devices: the target's text, as many tokens a round as theory says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from actors.messages import Ids
from actors.sampling.params import SamplingParams
from actors.spec import Voice
from cluster.bench.ladder.theory import expected_tokens, three_tier_tokens
from cluster.bench.local import LocalTier, local_drafter, local_verifier
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, GenerationRequest, TokenEvent
from tests.unit.emulation.devices import TARGET, emulated, text

PROMPT = [10, 20, 33, 41, 7]
DRAFT = Voice("draft", 0, (0.85,), (0.5,))
SMALL, MEDIUM = Voice("small", 0, (0.55,), (0.5,)), Voice("medium", 0, (0.9,), (0.5,))
LADDERS = {"two": ((DRAFT, TARGET), (TARGET,)), "three": ((SMALL, MEDIUM, TARGET), (MEDIUM, TARGET), (TARGET,))}


@pytest.fixture(params=LADDERS)
def tiers(request: pytest.FixtureRequest) -> Iterator[list[LocalTier]]:
    voices = LADDERS[request.param]
    workers = []
    for index, own in enumerate(voices):
        runner, spec = emulated(*own, tier=index)
        make = local_verifier if index else local_drafter
        workers.append(make(runner, spec, 1024))
    yield [LocalTier(worker) for worker in workers]
    for worker in workers:
        worker.shutdown()


async def spoken(
    ladder: Ladder, prompt: list[int], max_tokens: int, sampling: SamplingParams
) -> tuple[list[int], Finish]:
    ids: Ids = np.array(prompt, np.int32)
    request = GenerationRequest(f"s-{prompt}", ids, sampling, max_tokens, lookahead=5)
    said: list[int] = []
    async for event in generate(request, ladder):
        if isinstance(event, TokenEvent):
            said += event.token_ids.tolist()
        else:
            return said, event
    raise AssertionError("no finish")


def run(tiers: list[LocalTier], num_sequences: int, max_tokens: int, sampling: SamplingParams) -> list[Finish]:
    async def all_of_them() -> list[Finish]:
        ladder = Ladder(tiers, [8] * (len(tiers) - 2))
        prompts = [[*PROMPT, 10 + i] for i in range(num_sequences)]
        answers = await asyncio.gather(*(spoken(ladder, prompt, max_tokens, sampling) for prompt in prompts))
        for prompt, (said, finish) in zip(prompts, answers, strict=True):
            assert said == text(prompt, max_tokens, TARGET)
            assert not finish.figures.degraded
        return [finish for _, finish in answers]

    return asyncio.run(all_of_them())


def test_sequences_served_together_get_the_targets_text_and_commit_what_theory_expects(tiers: list[LocalTier]) -> None:
    finishes = run(tiers, 12, 400, SamplingParams())
    rounds = sum(finish.figures.rounds for finish in finishes)
    expected = expected_tokens(0.85, 5) if len(tiers) == 2 else three_tier_tokens(0.55, 0.9, 8, 5)
    assert 12 * 400 / rounds == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(temperature=1.0, seed=3), SamplingParams(temperature=1.0, entropy=5)]
)
def test_a_target_that_is_certain_says_the_same_at_any_temperature(
    tiers: list[LocalTier], sampling: SamplingParams
) -> None:
    run(tiers, 3, 60, sampling)

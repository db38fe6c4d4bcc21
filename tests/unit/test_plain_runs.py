"""Where many requests run without drafts the target answers several tokens at once: the same ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from actors.messages import Context, Draft, Origin, Verdict
from actors.sampling.params import SamplingParams
from cluster.coordinator.errors import GenerationFailed
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import FinishReason, GenerationRequest
from cluster.coordinator.runs import MANY_REQUESTS, run_tokens
from cluster.coordinator.settings import CoordinatorSettings
from tests.local_tier import LocalTier, verifier
from tests.models import tiny_runner, tiny_spec
from tests.unit.test_exactness import Answer, answer

pytestmark = pytest.mark.exactness

SAMPLINGS = {
    "greedy": SamplingParams(num_logprobs=2),
    "penalised": SamplingParams(repetition_penalty=1.3, presence_penalty=0.4),
    "seeded": SamplingParams(temperature=0.9, seed=11, top_k=30),
    "unseeded": SamplingParams(temperature=0.9, entropy=5, num_logprobs=0),
}


@pytest.fixture(scope="module")
def target() -> Iterator[LocalTier]:
    tier = LocalTier(verifier(tiny_runner("llama", kv_tokens=16384), tiny_spec(tier=1, kv_tokens=16384)))
    yield tier
    assert tier.leases == []
    tier.worker.engine.check_integrity()
    assert tier.worker.engine.stats().num_free_pages == tier.worker.engine.stats().num_pages
    tier.worker.shutdown()


def requests(sampling: SamplingParams, count: int, num_tokens: int = 22) -> list[GenerationRequest]:
    rng = np.random.default_rng(9)
    return [
        GenerationRequest(
            f"r{i}", rng.integers(0, 90, 4 + i).astype(np.int32), sampling, max_tokens=num_tokens + i, lookahead=0
        )
        for i in range(count)
    ]


def ask(target: LocalTier, asked: list[GenerationRequest], plain_tokens: int) -> list[Answer]:
    ladder = Ladder([target], settings=CoordinatorSettings(plain_tokens=plain_tokens))

    async def all_at_once() -> list[Answer]:
        return list(await asyncio.gather(*(answer(ladder, request) for request in asked)))

    answers = asyncio.run(all_at_once())
    assert ladder.open_requests.num == 0
    return answers


@pytest.mark.parametrize("name", SAMPLINGS)
def test_tokens_that_come_together_are_those_that_would_come_one_by_one(target: LocalTier, name: str) -> None:
    asked = requests(SAMPLINGS[name], MANY_REQUESTS + 2)
    one_by_one, together = ask(target, asked, 1), ask(target, asked, 4)
    assert [a.ids for a in together] == [a.ids for a in one_by_one]
    assert [a.logprobs for a in together] == [a.logprobs for a in one_by_one]
    for request, got in zip(asked, together, strict=True):
        assert set(got.origins) == {Origin.PLAIN}
        assert len(got.ids) == request.max_tokens == got.finish.figures.rounds
        assert got.finish.reason is FinishReason.LENGTH


def test_a_stop_id_in_the_middle_ends_the_text_there(target: LocalTier) -> None:
    plain = ask(target, requests(SamplingParams(), MANY_REQUESTS), 1)
    stop = plain[0].ids[5]
    for sampling in (SamplingParams(), SamplingParams(eos_ids=(stop,))):  # known to the target, or not
        asked = [replace(r, stop_ids=frozenset({stop})) for r in requests(sampling, MANY_REQUESTS)]
        for got, free in zip(ask(target, asked, 4), plain, strict=True):
            end = free.ids.index(stop) + 1 if stop in free.ids else len(free.ids)
            assert got.ids == free.ids[:end]


def test_more_tokens_than_were_asked_for_are_refused(target: LocalTier, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = target.worker.verify

    def generous(context: Context, drafts: Sequence[Draft], want_laws: bool = False) -> Future[Verdict]:
        return honest(replace(context, num_plain=3), drafts, want_laws)

    monkeypatch.setattr(target.worker, "verify", generous)
    with pytest.raises(GenerationFailed, match="answered 3 tokens for 0 accepted of 0 drafted"):
        ask(target, requests(SamplingParams(), 1), 4)


def test_few_requests_see_every_token_at_once_and_many_no_more_than_are_left() -> None:
    assert run_tokens(4, MANY_REQUESTS - 1, 100) == 1
    assert run_tokens(4, MANY_REQUESTS, 100) == 4
    assert run_tokens(4, MANY_REQUESTS, 3) == 3
    assert run_tokens(1, 100, 100) == 1

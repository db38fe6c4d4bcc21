"""Lossy requests through real engines and the coordinator; exact ones beside them stay exact."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from actors.messages import Context, Draft, DraftShape
from actors.sampling.params import SamplingParams
from actors.sampling.policies import BigLittle, LossyPolicy, TypicalAcceptance
from cluster.bench.local import LocalTier
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, GenerationRequest
from tests.local_tier import model_drafter, verifier
from tests.models import tiny_runner, tiny_spec

PROMPT = np.array([5, 9, 2, 40, 7], np.int32)
EAGER = TypicalAcceptance(1e-3, 1e-3)
POLICIES: list[LossyPolicy] = [EAGER, BigLittle(fallback=0.02, rollback=8.0)]


class Pair:
    """A target and a draft that often errs."""

    def __init__(self) -> None:
        self.target = verifier(tiny_runner("llama", kv_tokens=4096), tiny_spec(kv_tokens=4096))
        unlike = tiny_runner("llama", kv_tokens=4097, seed=1)
        self.draft = model_drafter(unlike, tiny_spec(tier=0, kv_tokens=4097))

    def say(self, sampling: SamplingParams, lookahead: int = 4) -> tuple[list[int], Finish]:
        ladder = Ladder([LocalTier(self.draft), LocalTier(self.target)])
        request = GenerationRequest(f"r{np.random.default_rng().integers(2**60)}", PROMPT, sampling, 24,
                                    lookahead=lookahead)

        async def run() -> tuple[list[int], Finish]:
            ids: list[int] = []
            async for event in generate(request, ladder):
                if isinstance(event, Finish):
                    return ids, event
                ids += event.token_ids.tolist()
            raise AssertionError("no finish")

        return asyncio.run(run())


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.draft.shutdown()
    pair.target.shutdown()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sampling", [
    SamplingParams(), SamplingParams(temperature=1.0, seed=3), SamplingParams(temperature=1.0, entropy=3),
])
def test_a_lossy_request_keeps_more_and_says_how_much(
    pair: Pair, sampling: SamplingParams, policy: LossyPolicy
) -> None:
    _, exact = pair.say(sampling)
    ids, lossy = pair.say(replace(sampling, lossy=policy))
    assert exact.figures.relaxed == 0
    assert lossy.figures.relaxed > 0
    assert lossy.figures.accepted > exact.figures.accepted
    assert len(ids) == 24


@pytest.mark.exactness
def test_exact_requests_are_untouched_by_lossy_ones_before_them(pair: Pair) -> None:
    """The prefix cache may hold what a lossy request committed: keys of the same tokens are the same keys."""
    plain, _ = pair.say(SamplingParams(), lookahead=0)
    for policy in POLICIES:
        lossy, _ = pair.say(SamplingParams(lossy=policy))
        assert lossy != plain
        assert pair.say(SamplingParams())[0] == plain
        assert pair.say(SamplingParams(lossy=policy), lookahead=0)[0] == plain  # nothing drafted, nothing lost


@pytest.mark.exactness
def test_a_verdict_that_becomes_a_draft_is_exact_whatever_the_request_allows(pair: Pair) -> None:
    """A middle tier's laws are promised to be those of its tokens."""
    sampling = SamplingParams(temperature=1.0, entropy=11)
    draft = Draft(np.array([3, 4, 6], np.int32))
    verdicts = []
    for name, params in (("exact", sampling), ("lossy", replace(sampling, lossy=EAGER))):
        context = Context(name, 0, PROMPT, len(PROMPT), len(PROMPT), params, 0)
        verdicts.append(pair.target.verify(context, [draft], want_laws=True).result(60))
        pair.target.close(name)
    exact, lossy = verdicts
    assert lossy.tokens.tolist() == exact.tokens.tolist()
    assert lossy.laws is not None
    assert lossy.num_relaxed == 0


def test_an_unsure_small_model_leaves_the_token_to_the_large_one(pair: Pair) -> None:
    def drafted(fallback: float) -> int:
        context = Context(f"f{fallback}", 0, PROMPT, len(PROMPT), len(PROMPT),
                          SamplingParams(lossy=BigLittle(fallback=fallback)), 0)
        draft = pair.draft.propose(context, DraftShape(6)).result(60)
        pair.draft.close(context.sequence_id)
        assert draft.error is None
        return len(draft.tokens)

    assert drafted(0.0) == 6
    assert drafted(1.0) == 0
    _, finish = pair.say(SamplingParams(lossy=BigLittle(fallback=1.0)))
    assert finish.figures.drafted == 0
    assert not finish.figures.degraded  # an empty draft is an answer, not a failure

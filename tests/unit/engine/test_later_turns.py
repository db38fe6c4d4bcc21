"""Later turns of a conversation find every page of the earlier ones, and nothing that was not decided."""

from __future__ import annotations

import numpy as np
import pytest

from actors.drafters.model import DraftJob
from actors.engine.batch import Batch
from actors.messages import Context, Draft, Ids
from actors.sampling.params import SamplingParams
from actors.verifier import VerifyJob
from tests.unit.engine.fakes import VOCAB
from tests.unit.engine.hashing import Hashing, make, next_id


def answer_of(batch: Batch, name: str, prompt: Ids, num_tokens: int, *, k: int) -> Ids:
    """Greedy rounds with right drafts, then the end of the sequence."""
    ids, held, round_ = prompt, 0, 0
    while len(ids) < len(prompt) + num_tokens:
        text = ids
        for _ in range(k):
            text = np.append(text, next_id(text)).astype(np.int32)
        round_ += 1
        context = Context(name, held, ids[held:], len(prompt), len(ids), SamplingParams(), round_)
        job = VerifyJob(context, [Draft(text[len(ids) :])], 1, 64, False)
        batch.attach(job)
        while batch.num_active:
            batch.step()
        held = len(ids)
        ids = np.concatenate([ids, job.future.result().tokens])
    batch.close(name)
    return ids


@pytest.mark.parametrize("k", [0, 1, 4, 16])
@pytest.mark.parametrize("num_prompt", [1, 15, 16, 17, 100])
def test_a_later_turn_finds_every_page_of_the_earlier_ones_in_the_target(k: int, num_prompt: int) -> None:
    """The last token of an answer was never fed, so it alone can be missing from a page."""
    batch, _, _ = make(Hashing(64, 16), kv_tokens=1024)
    rng = np.random.default_rng(num_prompt)
    text = rng.integers(0, VOCAB, num_prompt).astype(np.int32)
    for turn in range(3):
        text = answer_of(batch, f"turn{turn}", text, 30, k=k)
        following = np.concatenate([text, rng.integers(0, VOCAB, 5).astype(np.int32)])
        context = Context("next", 0, following, len(following), len(following), SamplingParams(), 1)
        job = VerifyJob(context, [], 1, 64, False)
        batch.attach(job)
        while batch.num_active:
            batch.step()
        assert job.future.result().num_cached_tokens == (len(text) - 1) // 16 * 16
        batch.close("next")
        text = following
    batch.kv.check_integrity()


@pytest.mark.parametrize("k", [1, 4, 16])
@pytest.mark.parametrize("accepted", [0.0, 0.7, 1.0])
def test_a_later_turn_finds_every_page_of_the_earlier_ones_in_the_draft_pool(k: int, accepted: float) -> None:
    """A drafter learns what became of its last draft from the truth that `close` tells."""
    batch, _, _ = make(Hashing(64, 16), kv_tokens=1024)
    rng = np.random.default_rng(k)
    for num_prompt in (1, 15, 16, 17, 60, 100):
        ids = prompt = rng.integers(0, VOCAB, num_prompt).astype(np.int32)
        held, fed = 0, 0
        for round_ in range(1, 8):
            context = Context("a", held, ids[held:], len(prompt), len(ids), SamplingParams(), round_)
            job = DraftJob(context, k, 0, 64)
            batch.attach(job)
            while batch.num_active:
                batch.step()
            drafted = job.future.result().tokens
            held = len(ids)
            num_accepted = int((rng.random(k) < accepted).cumprod().sum())
            recovered = (next_id(ids) + 1) % VOCAB if num_accepted < k else rng.integers(VOCAB)
            # The last drafted token was not fed, a recovered one never is.
            fed = held + min(num_accepted, k - 1)
            ids = np.concatenate([ids, drafted[:num_accepted], [recovered]]).astype(np.int32)
        batch.close("a", ids)
        following = np.concatenate([ids, rng.integers(0, VOCAB, 5).astype(np.int32)])
        job = DraftJob(Context("next", 0, following, len(following), len(following), SamplingParams(), 1), 1, 0, 64)
        batch.attach(job)
        while batch.num_active:
            batch.step()
        assert job.future.result().num_cached_tokens == fed // 16 * 16
        batch.close("next")
    batch.kv.check_integrity()


def test_rejected_and_undecided_tokens_are_not_found_by_others() -> None:
    batch, _, _ = make(Hashing(64, 16), kv_tokens=1024)
    ids = np.arange(16, dtype=np.int32)
    wrong = np.full(32, next_id(ids) + 1, np.int32) % VOCAB
    job = VerifyJob(Context("a", 0, ids, 16, 16, SamplingParams(), 1), [Draft(wrong)], 1, 64, False)
    batch.attach(job)
    while batch.num_active:
        batch.step()
    assert job.future.result().num_accepted == 0
    batch.close("a")
    other = np.concatenate([ids, wrong, ids]).astype(np.int32)
    job = VerifyJob(Context("b", 0, other, len(other), len(other), SamplingParams(), 1), [], 1, 64, False)
    batch.attach(job)
    while batch.num_active:
        batch.step()
    assert job.future.result().num_cached_tokens == 16

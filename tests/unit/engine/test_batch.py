"""Batches under pressure: every call is answered, with what the model says after exactly its own tokens."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.drafters.model import DraftJob
from actors.engine.batch import Batch
from actors.engine.jobs import PrefixMissing, ReplicaFull, SequenceRejected, StaleCall
from actors.engine.step import StepInput
from actors.messages import Context, Draft, Ids, Verdict
from actors.sampling.params import SamplingParams
from actors.spec import ModelSpec
from actors.verifier import VerifyJob
from tests.unit.engine.fakes import VOCAB, Clock, Decode, Runner, call, run


def make(runner: Any = None, **changes: Any) -> tuple[Batch, Clock, Any]:
    settings: dict[str, Any] = {"tier": 1, "model": "x", "page_tokens": 16, "kv_tokens": 160, **changes}
    clock, runner = Clock(), runner or Runner()
    return Batch(runner, ModelSpec(**settings), 1024, clock=clock), clock, runner


def next_id(ids: Ids) -> int:
    """The text of the model below: its next token is a function of all tokens before."""
    return zlib.crc32(ids.astype(np.int32).tobytes()) % VOCAB


class Hashing:
    """A model whose logits are a function of the tokens it finds in its KV memory, so that any slip shows.

    A slot holds the token written there; a slot of a free page holds whatever was last written.
    """

    vocab_size = VOCAB

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self._page = page_tokens
        self._slots = np.full((num_pages + 1, page_tokens), -1, np.int32)

    def forward(self, step: StepInput) -> torch.Tensor:
        """One-hot rows."""
        self._slots[step.copies[:, 1]] = self._slots[step.copies[:, 0]]
        self._slots.reshape(-1)[step.slots] = step.input_ids
        logits = torch.zeros(len(step.logit_rows), VOCAB)
        for out, row in enumerate(step.logit_rows):
            s = int(np.searchsorted(step.cu_query, row, side="right")) - 1
            held = self._slots[step.pages[step.cu_pages[s] : step.cu_pages[s + 1]]].reshape(-1)[: step.kv_len[s]]
            assert (held >= 0).all()
            logits[out, next_id(held[: step.positions[row] + 1])] = 1.0
        return logits


@dataclass
class Stream:
    """A request as its coordinator sees it: greedy rounds with drafts that are right now and then."""

    name: str
    prompt: Ids
    num_tokens: int
    rng: np.random.Generator
    ids: Ids = field(init=False)
    held: int = 0
    round: int = 0
    job: VerifyJob | None = None
    pause: int = 0  # steps until the next call

    def __post_init__(self) -> None:
        self.ids = self.prompt

    @property
    def done(self) -> bool:
        return len(self.ids) >= len(self.prompt) + self.num_tokens

    def next_call(self) -> VerifyJob:
        self.round += 1
        text = self.ids
        for _ in range(int(self.rng.integers(0, 6))):
            right = self.rng.random() < 0.8
            text = np.append(text, next_id(text) if right else self.rng.integers(VOCAB)).astype(np.int32)
        context = Context(
            self.name, self.held, self.ids[self.held :], len(self.prompt), len(self.ids), SamplingParams(), self.round
        )
        self.job = VerifyJob(context, [Draft(text[len(self.ids) :])], 1, 64, False)
        return self.job

    def take(self, verdict: Verdict) -> None:
        self.job = None
        self.pause = int(self.rng.integers(0, 4))
        if verdict.prefix_missing:
            self.held = 0
            return
        assert verdict.error is None
        self.held = len(self.ids)
        self.ids = np.concatenate([self.ids, verdict.tokens])

    def text(self) -> Ids:
        ids = self.prompt
        for _ in range(self.num_tokens):
            ids = np.append(ids, next_id(ids)).astype(np.int32)
        return ids


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), num_streams=st.integers(1, 9), page=st.sampled_from([1, 4, 16]),
    num_pages=st.integers(2, 24), max_rows=st.integers(2, 70),
)
def test_text_is_the_models_and_every_call_is_answered_however_little_memory_there_is(
    seed: int, num_streams: int, page: int, num_pages: int, max_rows: int
) -> None:
    """Shared prompts, rejected drafts, preemption, rows and pages both short: no livelock, no foreign token."""
    rng = np.random.default_rng(seed)
    capacity = num_pages * page
    batch, clock, _ = make(
        Hashing(num_pages, page), page_tokens=page, kv_tokens=capacity, max_batch_tokens=max_rows, max_sequences=4
    )
    shared = rng.integers(0, VOCAB, capacity).astype(np.int32)
    waiting = []
    for i in range(num_streams):
        longest = max(1, capacity - 8)
        prompt = shared[: rng.integers(1, longest + 1)].copy()
        if rng.random() < 0.5:
            prompt[rng.integers(len(prompt)) :] = rng.integers(VOCAB)
        num_tokens = int(rng.integers(1, 9))
        if len(prompt) + num_tokens + 5 <= capacity:
            waiting.append(Stream(f"s{i}", prompt, num_tokens, rng))
    live: list[Stream] = []
    for _ in range(6000):
        while waiting and len(live) < 4:
            live.append(waiting.pop())
        if not live:
            break
        for stream in list(live):
            if stream.job is not None and stream.job.future.done():
                stream.take(stream.job.future.result())
            if stream.done:
                assert stream.ids[: len(stream.text())].tolist() == stream.text().tolist()
                batch.close(stream.name)
                live.remove(stream)
            elif stream.job is None and stream.pause == 0:
                batch.attach(stream.next_call())
            stream.pause = max(0, stream.pause - 1)
        if not batch.step():
            clock.now += 0.2
        batch.kv.check_integrity()
    assert not live and not waiting
    assert batch.num_active == 0
    assert batch.kv.num_free == num_pages


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_drafts_are_the_models_under_pressure_too(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch, clock, _ = make(Hashing(10, 8), page_tokens=8, kv_tokens=80, max_batch_tokens=int(rng.integers(2, 40)))
    jobs, wanted = [], []
    for i in range(6):
        ids = rng.integers(0, VOCAB, int(rng.integers(1, 70))).astype(np.int32)
        job = DraftJob(Context(f"s{i}", 0, ids, len(ids), len(ids), SamplingParams(), 1), 5, 0, 64)
        text = ids
        for _ in range(5):
            text = np.append(text, next_id(text)).astype(np.int32)
        jobs.append(job)
        wanted.append(text[len(ids) :].tolist())
        batch.attach(job)
    for _ in range(2000):
        if not batch.step():
            clock.now += 0.5
        if all(job.future.done() for job in jobs):
            break
    assert [job.future.result().tokens.tolist() for job in jobs] == wanted
    batch.kv.check_integrity()


def test_the_oldest_sequence_is_never_preempted_and_preemptions_are_counted() -> None:
    batch, clock, runner = make(max_batch_tokens=48)
    old, young = call("old", 100, num_steps=50), call("young", 60, num_steps=40)
    batch.attach(old)
    batch.attach(young)
    fed: list[int] = []
    while not old.future.done():
        batch.step()
        step = runner.steps[-1]
        fed += step.positions[step.cu_query[0] : step.cu_query[1]].tolist() if step.kv_len[0] > 60 else []
    run(batch, clock, old, young)
    assert batch.num_preemptions > 0
    assert len(fed) == len(set(fed))  # nothing of the old one was computed twice


def test_a_preempted_prompt_begins_again_with_what_the_prefix_cache_kept() -> None:
    batch, clock, runner = make(kv_tokens=16 * 16, max_batch_tokens=64)
    old = call("old", 30, num_steps=80)
    batch.attach(old)
    batch.step()
    young = call("young", 190, num_steps=30)
    batch.attach(young)
    run(batch, clock, old, young)
    assert batch.num_preemptions >= 1
    rows = sum(len(step.input_ids) for step in runner.steps)
    assert rows < 30 + 79 + 190 + 29 + 190  # less than a second computation of all of it


def test_a_sequence_between_two_calls_keeps_its_pages_until_it_is_left_behind() -> None:
    batch, clock, runner = make()
    resting = call("resting", 100)
    batch.attach(resting)
    run(batch, clock, resting)
    newcomer = call("newcomer", 100)
    batch.attach(newcomer)
    assert not batch.step()
    again = Decode(Context("resting", 100, np.full(1, 3, np.int32), 101, 101, SamplingParams(), 2))
    batch.attach(again)
    assert batch.step()
    assert len(runner.steps[-1].input_ids) == 1  # nothing of it was computed again
    assert not newcomer.future.done()
    before = clock.now
    run(batch, clock, newcomer)
    assert clock.now - before >= 5.0
    assert batch.num_preemptions == 1


def test_a_call_that_outgrows_the_memory_fails_alone() -> None:
    batch, clock, _ = make()
    jobs = [call("huge", 100, num_steps=500), *(call(f"s{i}", 40) for i in range(4))]
    for job in jobs:
        batch.attach(job)
    run(batch, clock, *jobs)
    assert [job.future.result() for job in jobs[1:]] == ["done"] * 4
    with pytest.raises(SequenceRejected, match="KV memory is too small"):
        jobs[0].future.result()


def test_a_replica_whose_sequences_all_run_refuses_another_and_takes_it_later() -> None:
    batch, clock, _ = make(max_sequences=2)
    jobs = [call("a", 4, num_steps=3), call("b", 4, num_steps=3)]
    for job in jobs:
        batch.attach(job)
    refused = call("c", 4)
    batch.attach(refused)
    with pytest.raises(ReplicaFull, match="max_sequences=2"):
        refused.future.result()
    run(batch, clock, *jobs)
    accepted = call("c", 4)
    batch.attach(accepted)
    run(batch, clock, accepted)


def test_a_decoding_sequence_runs_in_every_step_beside_a_long_prompt() -> None:
    batch, clock, runner = make(kv_tokens=4096, max_batch_tokens=64, prefill_tokens=16)
    decoding = call("decoding", 4, num_steps=40)
    batch.attach(decoding)
    batch.step()
    prompt = call("prompt", 500)
    batch.attach(prompt)
    steps = run(batch, clock, decoding)
    assert steps == 39
    assert all(len(step.input_ids) == 17 and len(step.kv_len) == 2 for step in runner.steps[1:30])
    run(batch, clock, prompt)


def test_a_prompt_is_kept_short_for_sequences_that_will_be_back_at_once() -> None:
    batch, clock, runner = make(kv_tokens=4096, max_batch_tokens=64, prefill_tokens=16)
    between = call("between rounds", 4)
    batch.attach(between)
    run(batch, clock, between)
    prompt = call("prompt", 500)
    batch.attach(prompt)
    batch.step()
    assert len(runner.steps[-1].input_ids) == 16
    clock.now += 2.0
    batch.step()
    assert len(runner.steps[-1].input_ids) == 64


def test_a_pass_cut_into_steps_gets_all_its_logits_at_once() -> None:
    batch, clock, _ = make(max_batch_tokens=8, prefill_tokens=2, kv_tokens=640)
    jobs = [call(f"s{i}", 3, num_draft=16) for i in range(3)]
    for job in jobs:
        batch.attach(job)
    run(batch, clock, *jobs)
    assert [job.seen for job in jobs] == [[(17, 3)]] * 3


class Timed(Runner):
    """Passes that take 10 ms each."""

    def forward(self, step: StepInput) -> torch.Tensor:
        time.sleep(0.01)
        return super().forward(step)


def test_a_call_knows_the_seconds_of_the_passes_it_took_part_in() -> None:
    batch, clock, _ = make(Timed(), max_batch_tokens=16, kv_tokens=640)
    ids = np.arange(40, dtype=np.int32)
    draft_job = DraftJob(Context("a", 0, ids, 40, 40, SamplingParams(), 1), 3, 0, 64)
    batch.attach(draft_job)
    while batch.num_active:
        batch.step()
    draft = draft_job.future.result()
    assert batch.num_steps == 5  # three chunks of the prompt, two more tokens
    assert draft.model_seconds == pytest.approx(batch.forward_s)
    assert draft.model_seconds <= draft.seconds
    before = batch.forward_s
    verify_job = VerifyJob(Context("b", 0, ids, 40, 40, SamplingParams(), 1), [draft, draft], 1, 64, False)
    batch.attach(verify_job)
    while batch.num_active:
        batch.step()
    verdict = verify_job.future.result()
    assert verdict.verify_model_seconds == pytest.approx(batch.forward_s - before)
    assert verdict.draft_model_seconds == pytest.approx(2 * draft.model_seconds)
    assert verdict.verify_model_seconds <= verdict.verify_seconds


def test_sequences_left_behind_make_room_for_new_ones() -> None:
    batch, clock, _ = make(max_sequences=2)
    for name in "abcd":
        job = call(name, 20)
        batch.attach(job)
        run(batch, clock, job)
    gone = Decode(Context("a", 19, np.full(2, 3, np.int32), 20, 20, SamplingParams(), 2))
    batch.attach(gone)
    with pytest.raises(PrefixMissing):
        gone.future.result()


@pytest.mark.parametrize(
    ("context", "error", "reason"),
    [
        (Context("a", 0, np.zeros((2, 2), np.int32), 2, 2, SamplingParams(), 1), SequenceRejected, "flat list"),
        (Context("a", 0, np.zeros(0, np.int32), 0, 0, SamplingParams(), 1), SequenceRejected, "empty"),
        (Context("a", 0, np.full(3, VOCAB, np.int32), 3, 3, SamplingParams(), 1), SequenceRejected, "vocabulary"),
        (Context("a", 0, np.zeros(161, np.int32), 161, 161, SamplingParams(), 1), SequenceRejected, "kv_tokens=160"),
        (Context("a", 0, np.zeros(1025, np.int32), 1025, 1025, SamplingParams(), 1), SequenceRejected, "1024"),
        (Context("a", 5, np.zeros(1, np.int32), 6, 6, SamplingParams(), 1), PrefixMissing, None),
    ],
)
def test_a_call_that_cannot_be_taken_fails_alone(context: Context, error: type[Exception], reason: str | None) -> None:
    batch, clock, _ = make()
    bad, good = Decode(context), call("b", 4)
    batch.attach(bad)
    batch.attach(good)
    with pytest.raises(error, match=reason):
        bad.future.result()
    run(batch, clock, good)
    assert batch.num_sequences == 1


def test_a_later_call_replaces_an_earlier_one_and_not_the_other_way_round() -> None:
    batch, clock, _ = make()
    first, second = call("a", 20, round=2), call("a", 24, round=3)
    batch.attach(first)
    batch.attach(second)
    with pytest.raises(StaleCall, match="replaced"):
        first.future.result()
    late = call("a", 30, round=1)
    batch.attach(late)
    with pytest.raises(StaleCall, match="later call"):
        late.future.result()
    run(batch, clock, second)


def test_a_failed_pass_fails_its_calls_and_leaves_nothing_that_it_may_have_written() -> None:
    class Broken(Runner):
        def forward(self, step: StepInput) -> torch.Tensor:
            if self.num_steps == 1:
                self.steps.append(step)
                raise RuntimeError("out of memory")
            return super().forward(step)

    batch, clock, runner = make(Broken(), max_batch_tokens=16)
    job = call("a", 40)
    batch.attach(job)
    batch.step()
    batch.step()
    with pytest.raises(RuntimeError, match="out of memory"):
        job.future.result()
    again = call("a", 40, round=2)
    batch.attach(again)
    run(batch, clock, again)
    assert sum(len(step.input_ids) for step in runner.steps[2:]) >= 40 - 16  # the first chunk is in the prefix cache
    batch.kv.check_integrity()


# Later turns of a conversation


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

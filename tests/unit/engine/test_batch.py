"""Batches under pressure: every call is answered, with what the model says after exactly its own tokens."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.drafters.model import DraftJob
from actors.engine.jobs import SequenceRejected
from actors.engine.step import Best, Int32s, StepInput
from actors.messages import Context, Draft, Ids, Verdict
from actors.sampling.params import SamplingParams
from actors.verifier import VerifyJob
from tests.unit.engine.fakes import VOCAB, Decode, call, run
from tests.unit.engine.hashing import Decoding, Hashing, make, next_id


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

    def context(self, round_: int) -> Context:
        return Context(
            self.name, self.held, self.ids[self.held :], len(self.prompt), len(self.ids), SamplingParams(), round_
        )

    def next_call(self) -> VerifyJob:
        self.round += 1
        text = self.ids
        for _ in range(int(self.rng.integers(0, 6))):
            right = self.rng.random() < 0.8
            text = np.append(text, next_id(text) if right else self.rng.integers(VOCAB)).astype(np.int32)
        self.job = VerifyJob(self.context(self.round), [Draft(text[len(self.ids) :])], 1, 64, False)
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
    """Shared prompts, rejected drafts, preemption, rows and pages both short: no livelock, no foreign token. Some calls
    are expected first, early or when another is still under way."""
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
            if rng.random() < 0.3:
                batch.expect(stream.context(stream.round + int(rng.integers(3))))
        if not batch.step():
            clock.now += 0.2
        batch.kv.check_integrity()
    assert not live and not waiting
    assert batch.num_active == 0
    assert batch.kv.num_free == num_pages


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), several_passes=st.booleans())
def test_drafts_are_the_models_under_pressure_too(seed: int, several_passes: bool) -> None:
    rng = np.random.default_rng(seed)
    runner = Decoding(10, 8, iter(lambda: int(rng.integers(1, 6)), 0)) if several_passes else Hashing(10, 8)
    batch, clock, _ = make(runner, page_tokens=8, kv_tokens=80, max_batch_tokens=int(rng.integers(2, 40)))
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


class Recording(Decoding):
    """Notes how many passes each call was to make, and takes long for none of them."""

    def __init__(self) -> None:
        super().__init__(20, 16, itertools.repeat(9))
        self.asked: list[int] = []

    def decode(self, step: StepInput, num_passes: int, stop: Int32s) -> Best:
        self.asked.append(num_passes)
        return super().decode(step, num_passes, stop)


@pytest.mark.parametrize(("left_s", "asked"), [(math.inf, 8), (1e6, 8), (250.0, 3), (50.0, None), (-1.0, None)])
def test_no_more_passes_are_made_at_once_than_begin_before_the_calls_time_is_over(
    left_s: float, asked: int | None
) -> None:
    runner = Recording()
    batch, _, _ = make(runner, kv_tokens=320)

    def drafts(name: str) -> DraftJob:
        return DraftJob(Context(name, 0, np.arange(12, dtype=np.int32), 12, 12, SamplingParams(), 1), 8, 0, 64)

    batch.attach(drafts("a"))
    batch.step()
    batch._pass_s = 100.0  # as if each had taken so long
    job = drafts("b")
    job.deadline_s = time.monotonic() + left_s
    batch.attach(job)
    batch.step()
    assert runner.asked[1:] == ([] if asked is None else [asked])


def test_a_pass_of_fewer_sequences_says_nothing_of_how_many_passes_fit_into_a_calls_time() -> None:
    runner = Recording()
    batch, _, _ = make(runner, kv_tokens=320)

    def drafts(name: str, left_s: float | None = None) -> DraftJob:
        job = DraftJob(Context(name, 0, np.arange(12, dtype=np.int32), 12, 12, SamplingParams(), 1), 8, 0, 64)
        job.deadline_s = None if left_s is None else time.monotonic() + left_s
        return job

    batch.attach(drafts("a"))
    batch.step()
    batch._pass_s = 100.0
    first, second = drafts("b", 250.0), drafts("c", 250.0)
    batch.attach(first)
    batch.attach(second)
    batch.step()
    assert len(runner.asked) == 1  # a pass by itself: what one of two sequences takes was not known
    batch._pass_s = 100.0
    batch.step()
    assert runner.asked[1:] == [3]


def test_greedy_drafts_take_their_passes_at_once_unless_a_call_waits_or_somebody_looks_at_every_pass() -> None:
    runner = Decoding(20, 16, itertools.repeat(9))
    batch, clock, _ = make(runner, kv_tokens=320)

    def drafts(name: str, sampling: SamplingParams) -> DraftJob:
        return DraftJob(Context(name, 0, np.arange(12, dtype=np.int32), 12, 12, sampling, 1), 5, 0, 64)

    first, second = drafts("a", SamplingParams()), drafts("b", SamplingParams())
    batch.attach(first)
    batch.attach(second)
    batch.step()
    assert (runner.num_calls, batch.num_steps) == (1, 5)
    assert first.future.result().tokens.tolist() == second.future.result().tokens.tolist()
    assert len(first.future.result().tokens) == 5
    batch.attach(drafts("c", SamplingParams()))
    batch.stop[0] = 1
    batch.step()
    assert (runner.num_calls, batch.num_steps) == (1, 6)
    batch.stop[0] = 0
    batch.step()
    assert (runner.num_calls, batch.num_steps) == (2, 10)
    for other in (SamplingParams(repetition_penalty=1.2), SamplingParams(temperature=1.0, seed=3)):
        batch.attach(drafts("d", other))
        batch.step()
        assert runner.num_calls == 2
        while batch.num_active:
            batch.step()
        batch.close("d")
    for name in "abc":
        batch.close(name)
    batch.kv.check_integrity()
    assert batch.kv.num_free == 20


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

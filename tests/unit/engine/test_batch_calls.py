"""Calls of a batch: which are refused or replaced, what they are told, and what fails with them."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from actors.drafters.model import DraftJob
from actors.engine.jobs import PrefixMissing, ReplicaFull, SequenceRejected, StaleCall
from actors.engine.step import StepInput
from actors.messages import Context, Draft, Ids, Verdict
from actors.sampling.params import SamplingParams
from actors.verifier import VerifyJob
from tests.unit.engine.fakes import VOCAB, Decode, Runner, call, run
from tests.unit.engine.hashing import Hashing, make, next_id


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


class Broken(Runner):
    """Passes that fail."""

    def forward(self, step: StepInput) -> torch.Tensor:
        raise RuntimeError("out of memory")


@pytest.mark.parametrize(("num_tokens", "rejected"), [(161, True), (20, False)])
def test_a_verdict_tells_a_request_that_never_fits_from_a_failure(num_tokens: int, rejected: bool) -> None:
    batch, _, _ = make(Broken())
    ids = np.zeros(num_tokens, np.int32)
    job = VerifyJob(Context("a", 0, ids, num_tokens, num_tokens, SamplingParams(), 1), [], 1, 64, False)
    batch.attach(job)
    batch.step()
    verdict = job.future.result()
    assert verdict.rejected is rejected
    assert verdict.error is not None
    assert ("kv_tokens=160" if rejected else "out of memory") in verdict.error


def test_an_expected_call_that_never_comes_changes_no_later_answer_and_one_that_is_wrong_changes_nothing() -> None:
    runner = Hashing(20, 16)
    batch, _, _ = make(runner, kv_tokens=320)
    ids = np.arange(10, dtype=np.int32)

    def ask(context: Context, drafted: list[int]) -> Verdict:
        job = VerifyJob(context, [Draft(np.array(drafted, np.int32))], 1, 64, False)
        batch.attach(job)
        while batch.num_active:
            batch.step()
        return job.future.result()

    def told(start: int, tokens: Ids, num_committed: int, round_: int) -> Context:
        return Context("s", start, tokens[start:], 10, num_committed, SamplingParams(), round_)

    batch.expect(told(0, ids, 10, 1))
    assert batch.num_sequences == 0  # it opens nothing: who would close it?
    first = ask(told(0, ids, 10, 1), [1, 2])
    truth = np.append(ids, first.tokens).astype(np.int32)
    held = batch._table["s"].ids.view().tolist()
    for wrong in (
        told(10, np.append(truth, 7).astype(np.int32), len(truth), 2),  # of a tier between: not decided yet
        told(10, np.append(ids, VOCAB).astype(np.int32), 11, 2),
        told(0, ids[:0], 0, 2),
        told(0, ids, 10, 0),
        replace(told(0, ids, 10, 2), start=-5),
        told(0, ids, 10, 2),  # it is all there, and what follows it may yet be decided
    ):
        batch.expect(wrong)
        assert batch._table["s"].ids.view().tolist() == held
    batch.expect(told(10, truth, len(truth), 2))
    assert batch._table["s"].ids.view().tolist() == truth.tolist()
    verdict = ask(told(10, truth, len(truth), 3), [])
    assert verdict.tokens.tolist() == [next_id(truth)]
    batch.kv.check_integrity()

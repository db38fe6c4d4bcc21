"""Verdicts answer the features of the text that they decide on, whoever computed them and whatever came between."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engine.batch import Batch
from actors.engine.jobs import NoFeatures
from actors.engine.step import Int32s, StepInput
from actors.messages import Context, Draft, Halves, Ids, Verdict
from actors.sampling.params import SamplingParams
from actors.spec import ModelSpec
from actors.verifier import VerifyJob
from tests.unit.engine.fakes import VOCAB, Clock
from tests.unit.engine.hashing import Hashing, make, next_id


def mark(ids: Ids) -> float:
    """The feature of the last of `ids`."""
    return float(zlib.crc32(ids.astype(np.int32).tobytes()) % 2048)


class Keeper(Hashing):
    """Keeps of each row a mark of the text that it finds in its KV."""

    shares_head = False
    features_kept = 1

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        super().__init__(num_pages, page_tokens)
        self.page = page_tokens
        self._texts: list[tuple[int, ...]] = [()] * ((num_pages + 1) * page_tokens)

    def forward(self, step: StepInput) -> torch.Tensor:
        for source, target in step.moves.tolist():
            self._texts[target] = self._texts[source]
        old = list(self._texts)
        for source, target in step.copies.tolist():
            first = source * self.page
            self._texts[target * self.page : (target + 1) * self.page] = old[first : first + self.page]
        before = step.before(self.page).tolist()
        for token, slot, behind in zip(step.input_ids.tolist(), step.slots.tolist(), before, strict=True):
            self._texts[slot] = (*(self._texts[behind] if behind >= 0 else ()), token)
        return super().forward(step)

    def features_at(self, slots: Int32s) -> Halves:
        return np.array([[mark(np.array(self._texts[slot], np.int32))] for slot in slots.tolist()], np.float16)


@dataclass
class Stream:
    """A request in greedy rounds, with chains and trees that are right now and then."""

    name: str
    ids: Ids
    rng: np.random.Generator
    round: int = 0
    held: int = 0
    job: VerifyJob | None = None
    start: int = field(default=-1)

    def next_call(self) -> VerifyJob:
        self.round += 1
        self.start = int(self.rng.integers(-1, len(self.ids)))
        context = Context(
            self.name, self.held, self.ids[self.held :], 1, len(self.ids), SamplingParams(), self.round,
            features_from=self.start,
        )
        self.job = VerifyJob(context, [self._draft()], 1, 64, False)
        return self.job

    def _draft(self) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        is_tree, node, text = self.rng.random() < 0.5, -1, self.ids
        for _ in range(int(self.rng.integers(0, 5))):
            right = next_id(text)
            if is_tree and self.rng.random() < 0.7:
                tokens.append((right + 1) % VOCAB)
                parents.append(node)
            tokens.append(right if self.rng.random() < 0.9 else int(self.rng.integers(VOCAB)))
            parents.append(node)
            node = len(tokens) - 1
            text = np.append(text, np.int32(tokens[-1]))
        return Draft(np.array(tokens, np.int32), parents=np.array(parents, np.int32) if is_tree and tokens else None)

    def take(self, verdict: Verdict) -> None:
        self.job = None
        if verdict.prefix_missing:
            self.held = 0
            return
        assert verdict.error is None
        text = np.concatenate([self.ids, verdict.tokens[:-1]])
        if self.start >= 0:
            assert verdict.features is not None
            assert (verdict.features.start, verdict.features.end) == (self.start, len(text))
            assert verdict.features.rows[:, 0].tolist() == [mark(text[: p + 1]) for p in range(self.start, len(text))]
        else:
            assert verdict.features is None
        self.held = len(self.ids)
        self.ids = np.concatenate([self.ids, verdict.tokens])


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), num_streams=st.integers(1, 5), page=st.sampled_from([1, 4, 16]),
    num_tokens=st.integers(96, 300), max_rows=st.integers(12, 40),
)
def test_features_are_those_of_the_text_however_it_came_into_the_pages(
    seed: int, num_streams: int, page: int, num_tokens: int, max_rows: int
) -> None:
    """Chunked prefill, shared prompts, copy on write, trees, preemption."""
    rng = np.random.default_rng(seed)
    clock = Clock()
    spec = ModelSpec(
        tier=1, model="x", page_tokens=page, kv_tokens=num_tokens, max_batch_tokens=max_rows, prefill_tokens=1,
        max_sequences=3, feature_layers=(1,),
    )
    batch = Batch(Keeper(num_tokens // page, page), spec, 200, clock=clock)
    shared = rng.integers(0, VOCAB, 30).astype(np.int32)
    streams = [Stream(f"s{i}", shared[: rng.integers(1, 31)].copy(), np.random.default_rng([seed, i]))
               for i in range(num_streams)]
    for _ in range(200):
        stream = streams[int(rng.integers(num_streams))]
        if stream.job is not None and stream.job.future.done():
            if stream.job.future.exception() is None:  # full
                stream.take(stream.job.future.result())
            stream.job = None
        elif stream.job is None and len(stream.ids) < 60:
            if rng.random() < 0.05:
                batch.close(stream.name, stream.ids)
            batch.attach(stream.next_call())
        elif not batch.step():
            clock.now += 0.5
        batch.kv.check_integrity()


def test_a_runner_that_keeps_nothing_says_so() -> None:
    batch, _, _ = make(Hashing(10, 4), page_tokens=4, kv_tokens=40)
    job = VerifyJob(Context("a", 0, np.arange(4, dtype=np.int32), 4, 4, SamplingParams(), 1, features_from=0), [], 1,
                    64, False)
    batch.attach(job)
    batch.step()
    assert "feature_layers" in str(job.future.result().error)
    with pytest.raises(NoFeatures):
        job.read_features(np.zeros(1, np.int32))

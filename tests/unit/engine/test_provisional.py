"""Keys and values that are provisional never outlive their call, whatever comes between."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.drafters.model import DraftJob, TreeJob
from actors.engine.batch import Batch
from actors.engine.jobs import Fork, SequenceRejected
from actors.engine.sequences import branch_id
from actors.engine.step import StepInput
from actors.messages import Context, Draft, DraftShape, Features, Ids
from actors.sampling.params import SamplingParams
from actors.spec import ModelSpec
from tests.unit.engine.fakes import VOCAB, Clock, Decode, run
from tests.unit.engine.hashing import make

_WIDTH = 4
_NOTHING = 7  # what the row at position 0 reads
_NO_IDS = np.empty(0, np.int32)


def feature(ids: Ids) -> int:
    """What the target has to say of the last of `ids`: a function of all of them, exact in float16."""
    return zlib.crc32(b"target" + ids.astype(np.int32).tobytes()) % 2048


def own(before: int, token: int) -> int:
    """What the drafter itself makes of a token after the state `before`; never a target's feature."""
    return 2048 + zlib.crc32(np.array([before, token], np.int64).tobytes()) % 100000


def features_of(ids: Ids, start: int, end: int) -> Features:
    values = [feature(ids[: p + 1]) for p in range(start, end)]
    return Features(start, np.repeat(np.array(values, np.float16).reshape(-1, 1), _WIDTH, axis=1))


def next_id(tokens: list[int], read: list[int]) -> int:
    """The next token: a function of all tokens and of what the row of each has read."""
    return zlib.crc32(np.array([tokens, read], np.int64).tobytes()) % VOCAB


def says(ids: Ids, num_context: int) -> int:
    """The drafter's next token after `ids`, of which the first `num_context` are the context."""
    read = [_NOTHING if p == 0 else feature(ids[:p]) for p in range(num_context)]
    state = own(read[-1], int(ids[num_context - 1]))
    for token in ids[num_context:].tolist():
        read.append(state)
        state = own(state, token)
    return next_id(ids.tolist(), read)


class Reader:
    """A drafter that reads a state of the position before, written down by the contract of `TakesFeatures`."""

    vocab_size = VOCAB
    shares_head = False
    features_taken = _WIDTH

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self._page = page_tokens
        self.steps: list[StepInput] = []
        self._tokens, self._read, self._plane = (np.full((num_pages + 1) * page_tokens, -1, np.int64) for _ in range(3))

    def forward(self, step: StepInput) -> torch.Tensor:
        """One-hot rows."""
        self.steps.append(step)
        for held in (self._tokens, self._read, self._plane):
            for source, target in step.moves:
                held[target] = held[source]
            pages = held.reshape(-1, self._page)
            pages[step.copies[:, 1]] = pages[step.copies[:, 0]]
        self._plane[step.feature_slots] = step.features[:, 0].astype(np.int64) if len(step.feature_slots) else 0
        before = step.before(self._page)
        states = np.where(before < 0, _NOTHING, self._plane[before])
        self._tokens[step.slots], self._read[step.slots] = step.input_ids, states
        for slot, state, token in zip(step.slots.tolist(), states.tolist(), step.input_ids.tolist(), strict=True):
            if slot not in step.feature_slots:
                self._plane[slot] = own(state, token)
        logits = torch.zeros(len(step.logit_rows), VOCAB)
        for out, row in enumerate(step.logit_rows):
            s = int(np.searchsorted(step.cu_query, row, side="right")) - 1
            num_seen = int(step.kv_len[s] - step.cu_query[s + 1]) + int(row) + 1
            places = np.arange(num_seen)
            slots = step.pages[step.cu_pages[s] + places // self._page] * self._page + places % self._page
            logits[out, next_id(self._tokens[slots].tolist(), self._read[slots].tolist())] = 1.0
        return logits


@dataclass
class Client:
    """A request as its coordinator sees it. Of the target's features it hands over what it believes is missing."""

    name: str
    ids: Ids
    rng: np.random.Generator
    given: int = 0  # leading positions whose features it has handed over
    round: int = 0
    draft: Draft = field(default_factory=lambda: Draft(_NO_IDS))
    job: DraftJob | TreeJob | None = None
    num_context: int = 0  # of the job

    def propose(self) -> DraftJob | TreeJob:
        self.round += 1
        last = len(self.ids) - 1
        first = min(self.given, last) if self.rng.random() < 0.9 else int(self.rng.integers(0, last + 1))
        if self.rng.random() < 0.1:
            last = int(self.rng.integers(first, last + 1))
        features = features_of(self.ids, first, last)
        self.num_context = len(self.ids)
        context = self._context(self.ids, features if len(features.rows) else None)
        shape = DraftShape(int(self.rng.integers(1, 5)))
        if self.rng.random() < 0.5:
            self.job = DraftJob(context, shape.num_tokens, 0, 64, int(self.rng.integers(0, 2)))
        else:
            self.job = TreeJob(context, DraftShape(3, num_nodes=int(self.rng.integers(1, 9))), 3, 0, 64)
        return self.job

    def extend(self) -> DraftJob:
        """Go on after the draft, before anybody has verified it."""
        self.round += 1
        job = DraftJob(self._context(np.concatenate([self.ids, self.draft.tokens]), None), 3, 0, 64)
        job.extends = True
        self.job, self.num_context = job, len(self.ids)
        return job

    def _context(self, ids: Ids, features: Features | None) -> Context:
        return Context(self.name, 0, ids, 1, len(self.ids), SamplingParams(), self.round, features)

    def take(self) -> None:
        """Check the answer."""
        job, self.job = self.job, None
        assert job is not None
        draft = job.future.result()
        ids = job.context.tokens
        if draft.features_missing >= 0:
            given = job.context.features
            assert draft.features_missing < len(ids) - 1 or job.extends
            assert given is None or not given.start <= draft.features_missing < given.end or job.extends
            self.given = min(draft.features_missing, len(ids) - 1)
            return
        ends = ("replaced", "closed", "KV memory", "max_sequences")
        assert draft.error is None or any(why in draft.error for why in ends), draft.error
        if len(draft.tokens):
            self.given = self.num_context - 1
        elders: set[int] = set()
        for node, token in enumerate(draft.tokens.tolist()):
            parent = node - 1 if draft.parents is None else int(draft.parents[node])
            if parent not in elders:
                elders.add(parent)
                text = np.concatenate([ids, draft.tokens[_path(draft, parent)]]).astype(np.int32)
                assert token == says(text, self.num_context)
        if draft.parents is None and not job.extends:
            self.draft = draft

    def meet(self) -> None:
        """The truth goes on: with a part of the draft, and a token of the target's own."""
        kept = self.draft.tokens[: int(self.rng.integers(0, len(self.draft.tokens) + 1))]
        self.ids = np.concatenate([self.ids, kept, [int(self.rng.integers(VOCAB))]]).astype(np.int32)
        self.draft = Draft(_NO_IDS)


def _path(draft: Draft, node: int) -> list[int]:
    nodes: list[int] = []
    while node >= 0:
        nodes.append(node)
        node = node - 1 if draft.parents is None else int(draft.parents[node])
    return nodes[::-1]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), num_clients=st.integers(1, 4), page=st.sampled_from([1, 4, 16]),
    num_tokens=st.integers(96, 500), max_rows=st.integers(2, 40),
)
def test_every_draft_is_made_of_the_targets_features_whatever_was_drafted_before(
    seed: int, num_clients: int, page: int, num_tokens: int, max_rows: int
) -> None:
    rng = np.random.default_rng(seed)
    clock = Clock()
    spec = ModelSpec(
        tier=0, model="x", page_tokens=page, kv_tokens=num_tokens, max_batch_tokens=max_rows, prefill_tokens=1,
        max_sequences=3,
    )
    batch = Batch(Reader(num_tokens // page, page), spec, 200, clock=clock)
    shared = rng.integers(0, VOCAB, 20).astype(np.int32)
    clients = [
        Client(f"c{i}", np.append(shared[: rng.integers(1, 20)], np.int32(i)), np.random.default_rng([seed, i]))
        for i in range(num_clients)
    ]
    for _ in range(150):
        client = clients[int(rng.integers(num_clients))]
        act = rng.random()
        if client.job is not None and client.job.future.done():
            client.take()
        elif act < 0.03:
            batch.close(client.name, client.ids if rng.random() < 0.5 else None)
            if client.job is not None:
                client.take()
        elif act < 0.4 and len(client.ids) < 60 and (client.job is None or rng.random() < 0.2):
            job: Any
            if client.job is None and len(client.draft.tokens) and rng.random() < 0.3:
                job = client.extend()
            else:
                if client.job is None and rng.random() < 0.8:
                    client.meet()
                job = client.propose()
            batch.attach(job)
        elif not batch.step():
            clock.now += 0.5
        batch.kv.check_integrity()
    for client in clients:
        for _ in range(2000):
            if client.job is None or client.job.future.done():
                break
            if not batch.step():
                clock.now += 0.5
        if client.job is not None:
            client.take()
        batch.close(client.name)
    batch.kv.check_integrity()


def _batch(page: int = 4) -> Batch:
    spec = ModelSpec(tier=0, model="x", page_tokens=page, kv_tokens=400, max_batch_tokens=64)
    return Batch(Reader(400 // page, page), spec, 200, clock=Clock())


def _draft(batch: Batch, ids: Ids, features: Features | None, round: int, name: str = "a") -> Draft:
    context = Context(name, 0, ids, 1, len(ids), SamplingParams(), round, features)
    job = DraftJob(context, 4, 0, 64)
    batch.attach(job)
    while not job.future.done():
        batch.step()
    return job.future.result()


def test_a_call_is_told_the_first_position_that_it_lacks_and_goes_on_with_just_that() -> None:
    batch, ids = _batch(), np.arange(10, dtype=np.int32)
    assert _draft(batch, ids, None, 1).features_missing == 0
    assert _draft(batch, ids, features_of(ids, 3, 9), 2).features_missing == 0
    assert _draft(batch, ids, features_of(ids, 0, 5), 3).features_missing == 5
    assert _draft(batch, ids, features_of(ids, 5, 8), 4).features_missing == 8  # the last one before the last token
    draft = _draft(batch, ids, features_of(ids, 8, 9), 5)
    assert len(draft.tokens) == 4 and draft.features_missing == -1
    ids = np.concatenate([ids, draft.tokens[:2], [3]]).astype(np.int32)
    assert _draft(batch, ids, None, 6).features_missing == 9
    draft = _draft(batch, ids, features_of(ids, 9, 12), 7)
    assert [says(np.append(ids, draft.tokens[:i]), len(ids)) for i in range(4)] == draft.tokens.tolist()


def test_drafted_rows_are_computed_again_with_the_features_of_the_truth() -> None:
    runner = Reader(100, 4)
    batch = Batch(runner, ModelSpec(tier=0, model="x", page_tokens=4, kv_tokens=400), 200, clock=Clock())
    ids = np.arange(10, dtype=np.int32)
    draft = _draft(batch, ids, features_of(ids, 0, 9), 1)
    assert batch.kv.length("a") == 13
    ids = np.concatenate([ids, draft.tokens, [3]]).astype(np.int32)
    runner.steps.clear()
    _draft(batch, ids, features_of(ids, 9, 14), 2)
    assert runner.steps[0].positions.tolist() == [10, 11, 12, 13, 14]


def test_provisional_pages_and_those_that_lack_a_feature_are_not_found_by_another_prompt() -> None:
    batch, ids = _batch(), np.arange(8, dtype=np.int32)
    draft = _draft(batch, ids, features_of(ids, 0, 7), 1)
    told = np.concatenate([ids, draft.tokens]).astype(np.int32)
    batch.close("a", told)
    job = DraftJob(Context("b", 0, told, 1, 12, SamplingParams(), 1, features_of(told, 0, 11)), 1, 0, 64)
    batch.attach(job)
    batch.step()
    assert job.future.result().num_cached_tokens == 4  # nor is the page of position 7, whose features nobody gave


def test_features_of_another_shape_are_refused_with_what_to_do() -> None:
    batch, ids = _batch(), np.arange(8, dtype=np.int32)
    draft = _draft(batch, ids, Features(0, np.zeros((7, 2), np.float16)), 1)
    assert draft.error is not None and "feature_layers" in draft.error
    assert SequenceRejected.__name__ not in draft.error


def test_rows_that_a_call_says_are_provisional_serve_its_branches_and_the_calls_that_extend_it_alone() -> None:
    batch, clock, runner = make(page_tokens=4, kv_tokens=200)

    def ask(num_tokens: int, round: int, name: str = "a", num_draft: int = 0, **settings: Any) -> Decode:
        tokens = np.array([5] * 10 + [3] * 90, np.int32)[:num_tokens]
        context = Context(name, 0, tokens, 10, num_tokens, SamplingParams(), round)
        job = Decode(context, draft=np.full(num_draft, 3, np.int32))
        for setting, value in settings.items():
            setattr(job, setting, value)
        batch.attach(job)
        run(batch, clock, job)
        return job

    ask(10, 1, num_draft=4, num_whole=10)
    assert batch.kv.length("a") == 14
    branch = branch_id("a", "b")
    ask(14, 1, branch, fork=Fork("a", 13))
    assert runner.steps[-1].positions.tolist() == [13]
    assert batch.kv.length(branch) == 14
    ask(14, 2, extends=True)
    assert runner.steps[-1].positions.tolist() == [13]
    ask(14, 3)
    assert runner.steps[-1].positions.tolist() == [10, 11, 12, 13]
    ask(15, 4)
    assert runner.steps[-1].positions.tolist() == [14]
    ask(15, 5, num_draft=4, num_whole=15)
    batch.close("a", np.array([5] * 10 + [3] * 9, np.int32))
    assert ask(19, 1, "c").num_cached_tokens == 12
    batch.kv.check_integrity()

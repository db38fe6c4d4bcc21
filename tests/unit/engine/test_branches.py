"""Branches on forked pages: no page leaks, no sequence loses to them, and what they draft is the model's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.drafters.ahead import AheadJob
from actors.drafters.model import DraftJob, TreeJob
from actors.engine.batch import Batch
from actors.engine.sequences import BRANCH_MARK
from actors.messages import AheadPlan, Context, Draft, DraftShape, Enumeration, Ids
from actors.sampling.params import SamplingParams
from actors.spec import ModelSpec
from tests.unit.engine.fakes import Clock, Runner, call, run
from tests.unit.engine.hashing import next_id
from tests.unit.engine.test_tree_calls import Hashing

MAX_CONTEXT = 200


@dataclass
class Client:
    """A sequence as its coordinator sees it: it proposes, asks for outcomes, meets one of them, and so on."""

    name: str
    rng: np.random.Generator
    ids: Ids = field(init=False)
    draft: Draft = field(init=False)
    asked: Draft = field(init=False)  # the draft that was last enumerated for
    num_told: int = 0  # tokens of the context of the last call
    round: int = 0

    def __post_init__(self) -> None:
        self.ids = self.rng.integers(0, 50, int(self.rng.integers(1, 30))).astype(np.int32)
        self.draft = self.asked = Draft(np.empty(0, np.int32))

    def context(self) -> Context:
        self.round += 1
        # As a coordinator does, it counts on no more than what it has told as the truth before.
        known = min(self.num_told, len(self.ids) - 1)
        start = 0 if self.rng.random() < 0.5 else int(self.rng.integers(0, known + 1))
        self.num_told = len(self.ids)
        return Context(self.name, start, self.ids[start:], 1, len(self.ids), SamplingParams(), self.round)

    def shape(self) -> DraftShape:
        """A chain or a small tree."""
        kind, depth = self.rng.random(), int(self.rng.integers(1, 6))
        if kind < 0.5:
            return DraftShape(depth)
        if kind < 0.6:
            return DraftShape(depth, siblings=int(self.rng.integers(1, 3)))
        if kind < 0.8:
            return DraftShape(depth, num_nodes=int(self.rng.integers(1, 12)))
        return DraftShape(depth, widths=tuple(self.rng.integers(1, 4, int(self.rng.integers(1, 4))).tolist()))

    def propose(self) -> DraftJob | TreeJob:
        shape = self.shape()
        if not shape.grows:
            return DraftJob(self.context(), shape.num_tokens, 0, 64, shape.siblings)
        return TreeJob(self.context(), shape, shape.num_tokens, 0, 64)

    def enumerate(self) -> AheadJob:
        plan = AheadPlan(
            self.shape(), int(self.rng.integers(0, 9)), int(self.rng.integers(1, 4)), 120,
            0.0 if self.rng.random() < 0.1 else 600.0,
        )
        self.asked = self.draft
        return AheadJob(self.context(), self.draft, self.round - 1, plan, 0, 64, MAX_CONTEXT)

    def meet(self, verified: Draft, found: Enumeration | None) -> None:
        """The truth: one of the outcomes of verifying a draft, or another one."""
        if found is not None and found.branches and self.rng.random() < 0.7:
            branch = found.branches[int(self.rng.integers(len(found.branches)))]
            node, token, self.draft = branch.node, branch.token, branch.draft
        else:
            node, token = int(self.rng.integers(-1, len(verified.tokens))), int(self.rng.integers(50))
            self.draft = Draft(np.empty(0, np.int32))
        self.ids = np.concatenate([self.ids, verified.tokens[path(verified, node)], [token]]).astype(np.int32)


def path(draft: Draft, node: int) -> list[int]:
    """Nodes from the root to `node`."""
    nodes: list[int] = []
    while node >= 0:
        nodes.append(node)
        node = node - 1 if draft.parents is None else int(draft.parents[node])
    return nodes[::-1]


def check(ids: Ids, draft: Draft) -> None:
    """Every eldest child is what the model says after its path, so in a chain every token is."""
    elders: dict[int, int] = {}
    for node in range(len(draft.tokens)):
        parent = node - 1 if draft.parents is None else int(draft.parents[node])
        if elders.setdefault(parent, node) == node:
            text = np.concatenate([ids, draft.tokens[path(draft, parent)]]).astype(np.int32)
            assert draft.tokens[node] == next_id(text)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), num_clients=st.integers(1, 4), page=st.sampled_from([1, 4, 16]),
    num_tokens=st.integers(160, 600), max_rows=st.integers(2, 40),
)
def test_any_order_of_calls_keeps_the_pages_and_drafts_what_the_model_says(
    seed: int, num_clients: int, page: int, num_tokens: int, max_rows: int
) -> None:
    rng = np.random.default_rng(seed)
    clock = Clock()
    spec = ModelSpec(
        tier=0, model="x", page_tokens=page, kv_tokens=num_tokens, max_batch_tokens=max_rows, prefill_tokens=1,
        max_sequences=3,
    )
    batch = Batch(Hashing(num_tokens // page, page), spec, MAX_CONTEXT, clock=clock)
    clients = [Client(f"c{i}", np.random.default_rng([seed, i])) for i in range(num_clients)]
    jobs: dict[str, Any] = {}
    for _ in range(120):
        client = clients[int(rng.integers(num_clients))]
        job = jobs.get(client.name)
        act = rng.random()
        if act < 0.04:
            batch.close(client.name, client.ids if rng.random() < 0.5 else None)
        elif len(client.ids) < 100 and act < 0.4:
            if job is not None and job.future.done():
                take(client, job)
            wants_outcomes = rng.random() < 0.6
            jobs[client.name] = client.enumerate() if wants_outcomes else client.propose()
            batch.attach(jobs[client.name])
        elif not batch.step():
            clock.now += 0.5
        batch.kv.check_integrity()
        assert not any(BRANCH_MARK in name for name in batch.sequence_ids)
        assert batch.num_sequences <= 3
    waiting = [job for job in jobs.values() if not job.future.done()]
    for _ in range(3000):
        if all(job.future.done() for job in waiting):
            break
        if not batch.step():
            clock.now += 0.5
        batch.kv.check_integrity()
    assert all(job.future.done() for job in waiting)
    for client in clients:
        if client.name in jobs:
            take(client, jobs[client.name])
        batch.close(client.name)
    batch.kv.check_integrity()
    assert batch.kv.num_free == batch.kv.num_pages


def take(client: Client, job: DraftJob | TreeJob | AheadJob) -> None:
    """Check an answer and go on from it."""
    answer = job.future.result()
    ids = client.ids[: client.num_told]
    if isinstance(answer, Enumeration):
        assert len({(b.node, b.token) for b in answer.branches}) == len(answer.branches)
        verified = client.asked
        for branch in answer.branches:
            text = np.concatenate([ids, verified.tokens[path(verified, branch.node)], [branch.token]])
            check(text.astype(np.int32), branch.draft)
        client.meet(verified, answer)
    elif len(answer.tokens):
        check(ids, answer)
        client.draft = answer


def make(num_pages: int, page: int = 4) -> tuple[Batch, Clock]:
    clock = Clock()
    spec = ModelSpec(tier=0, model="x", page_tokens=page, kv_tokens=num_pages * page)
    return Batch(Runner(), spec, MAX_CONTEXT, clock=clock), clock


def finish(batch: Batch, *jobs: Any) -> None:
    for _ in range(100):
        if all(job.future.done() for job in jobs):
            return
        batch.step()
    raise AssertionError("calls without an answer")


def ask(batch: Batch, num_branches: int, num_tokens: int = 20) -> Enumeration:
    """A proposal of sequence "a", and drafts for its outcomes."""
    ids = np.arange(num_tokens, dtype=np.int32)
    draft_job = DraftJob(Context("a", 0, ids, 1, num_tokens, SamplingParams(), 1), 4, 0, 64)
    batch.attach(draft_job)
    finish(batch, draft_job)
    plan = AheadPlan(DraftShape(4), num_branches, 8, 150, 600.0)
    ahead = AheadJob(
        Context("a", 0, ids, 1, num_tokens, SamplingParams(), 2), draft_job.future.result(), 1, plan, 0, 64, MAX_CONTEXT
    )
    batch.attach(ahead)
    finish(batch, ahead)
    return ahead.future.result()


def test_branches_share_the_pages_of_their_sequence() -> None:
    batch, _ = make(100)
    assert len(ask(batch, 8).branches) == 8
    used = batch.kv.num_pages - batch.kv.num_free
    assert used <= 6 + 8 * 3  # a branch owns what it wrote alone: two or three pages of four tokens
    batch.kv.check_integrity()
    batch.close("a")
    assert batch.kv.num_free == batch.kv.num_pages


def test_a_sequence_that_needs_pages_ends_branches_and_preempts_nobody() -> None:
    batch, clock = make(40)
    assert ask(batch, 8).branches
    job = call("b", 120)
    batch.attach(job)
    run(batch, clock, job)
    assert job.future.result() == "done"
    assert batch.num_preemptions == 0
    assert "a" in batch.sequence_ids


def test_branches_without_pages_end_with_what_they_have() -> None:
    batch, _ = make(8)
    found = ask(batch, 8)
    assert len(found.branches) < 8
    assert batch.num_preemptions == 0
    batch.kv.check_integrity()


def test_undecided_tokens_of_branches_are_found_by_no_prompt() -> None:
    batch, _ = make(100, page=2)
    found = ask(batch, 8)
    branch = max(found.branches, key=lambda b: b.node)
    text = np.concatenate([np.arange(20), [0] * (branch.node + 1), [branch.token], branch.draft.tokens, [1]])
    batch.close("a")
    job = DraftJob(Context("b", 0, text.astype(np.int32), 1, 20, SamplingParams(), 1), 1, 0, 64)
    batch.attach(job)
    finish(batch, job)
    assert job.future.result().num_cached_tokens <= 20


def test_a_draft_goes_on_with_what_a_branch_has_drawn_if_nobody_was_told() -> None:
    """Sampled tokens, too: the call that ends an enumeration takes its branch over in the middle."""
    sampling = SamplingParams(temperature=1.0, entropy=4)
    batch, _ = make(100)
    ids = np.arange(20, dtype=np.int32)
    plan = AheadPlan(DraftShape(6), 4, 4, 150, 600.0)
    told, nothing = Context("a", 0, ids, 1, 20, sampling, 1), Draft(np.empty(0, np.int32))
    ahead = AheadJob(told, nothing, 0, plan, 0, 64, MAX_CONTEXT)
    batch.attach(ahead)
    for _ in range(3):  # its own pass, and two tokens of each branch
        assert batch.step()
    text = np.append(ids, np.int32(2))
    job = DraftJob(Context("a", 20, text[20:], 1, 21, sampling, 2), 4, 0, 64)
    batch.attach(job)
    found = ahead.future.result(0)
    assert found.error is None
    assert [len(branch.draft.tokens) for branch in found.branches] == [2] * 4
    branch = found.find(-1, 2)
    assert branch is not None
    finish(batch, job)
    draft = job.future.result()
    assert draft.tokens[:2].tolist() == branch.draft.tokens.tolist()
    assert draft.laws is not None
    assert draft.laws.num_tokens == len(draft.tokens) == 4
    again = DraftJob(Context("a", 21, text[21:], 1, 21, sampling, 3), 4, 0, 64)
    steps = batch.num_steps
    batch.attach(again)
    finish(batch, again)
    assert batch.num_steps == steps + 4  # these were told, so they are drawn anew

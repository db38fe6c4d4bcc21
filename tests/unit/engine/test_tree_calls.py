"""Calls whose draft is a tree: what is decided, and what stays of the tree in KV memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engine.batch import Batch
from actors.engine.gpu.runner import GpuOptions, GpuRunner
from actors.engine.jobs import Job, SequenceRejected
from actors.engine.linear import pack_linears
from actors.engine.step import ModelRunner, StepInput
from actors.messages import Context, Draft, Ids, Origin, Verdict
from actors.sampling import laws as law_tools
from actors.sampling.params import SamplingParams
from actors.sampling.rows import LogitRows
from actors.sampling.validate import BadDraft
from actors.spec import ModelSpec
from actors.verifier import VerifyJob
from tests.models import ARCHITECTURES, tiny_model, tiny_runner, tiny_spec
from tests.unit.engine.fakes import VOCAB, run
from tests.unit.engine.gpu.fakes import FakeGraphs
from tests.unit.engine.gpu.oracle import PlainKernels
from tests.unit.engine.test_batch import make, next_id
from tests.unit.engine.test_tree import lineage


class Hashing:
    """A model whose logits are a function of the tokens that a row should see, as it finds them in KV memory."""

    vocab_size = VOCAB

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self._page = page_tokens
        self._slots = np.full((num_pages + 1) * page_tokens, -1, np.int32)

    def forward(self, step: StepInput) -> torch.Tensor:
        """One-hot rows."""
        for source, target in step.moves:
            self._slots[target] = self._slots[source]
        pages = self._slots.reshape(-1, self._page)
        pages[step.copies[:, 1]] = pages[step.copies[:, 0]]
        self._slots[step.slots] = step.input_ids
        logits = torch.zeros(len(step.logit_rows), VOCAB)
        for out, row in enumerate(step.logit_rows.tolist()):
            s = int(np.searchsorted(step.cu_query, row, side="right")) - 1
            first, end = int(step.cu_query[s]), int(step.cu_query[s + 1])
            held = pages[step.pages[step.cu_pages[s] : step.cu_pages[s + 1]]].reshape(-1)
            start = int(step.kv_len[s]) - (end - first)
            chain = np.arange(-1, end - first - 1)
            parents = step.parents[first:end] if len(step.parents) else chain
            text = np.concatenate([held[:start], held[start + np.array(lineage(parents, row - first))]])
            assert (text >= 0).all() and len(text) == step.positions[row] + 1
            logits[out, next_id(text)] = 1.0
        return logits


def a_tree(
    text: Ids, num_nodes: int, right: float, rng: np.random.Generator, follow: Callable[[Ids], int], vocab_size: int
) -> Draft:
    """A random tree after `text`; a node is what `follow` says of its path with probability `right`."""
    near = int(rng.integers(1, 6))
    parents = np.array([rng.integers(max(-1, row - near), row) for row in range(num_nodes)], np.int32)
    tokens = np.zeros(num_nodes, np.int32)
    for node in range(num_nodes):
        path = np.concatenate([text, tokens[lineage(parents, int(parents[node]))]]).astype(np.int32)
        guess = rng.random() < right
        tokens[node] = follow(path) if guess else rng.integers(-1, vocab_size + 2)  # some that no vocabulary has
    return Draft(tokens, parents=parents if num_nodes else None)


def verify_job(
    name: str, ids: Ids, held: int, round_: int, draft: Draft, spec: ModelSpec, vocab_size: int
) -> VerifyJob:
    """As `Verifier.verify` makes it."""
    context = Context(name, held, ids[held:], 1, len(ids), SamplingParams(), round_)
    job = VerifyJob(context, [draft], 1, 64, False)
    job.clip_tree(min(spec.tree_rows, spec.kv_tokens - len(ids)))
    job.stop_at_foreign_id(vocab_size)
    return job


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), num_streams=st.integers(1, 6), page=st.sampled_from([1, 4, 16]),
    num_pages=st.integers(4, 24), max_rows=st.integers(3, 60),
)
def test_text_is_the_models_whatever_the_trees_however_little_rows_and_memory_there_are(
    seed: int, num_streams: int, page: int, num_pages: int, max_rows: int
) -> None:
    rng = np.random.default_rng(seed)
    capacity = num_pages * page
    batch, clock, _ = make(
        Hashing(num_pages, page), page_tokens=page, kv_tokens=capacity, max_batch_tokens=max_rows
    )
    spec = ModelSpec(1, "x", page_tokens=page, kv_tokens=capacity, max_batch_tokens=max_rows)
    shared = rng.integers(0, VOCAB, capacity).astype(np.int32)
    texts: dict[str, Ids] = {}
    wanted: dict[str, Ids] = {}
    for i in range(num_streams):
        ids = shared[: rng.integers(1, max(2, capacity - 9))]
        texts[f"s{i}"], wanted[f"s{i}"] = ids, ids
        while len(wanted[f"s{i}"]) < min(len(ids) + 8, capacity):
            wanted[f"s{i}"] = np.append(wanted[f"s{i}"], next_id(wanted[f"s{i}"])).astype(np.int32)
    jobs: dict[str, VerifyJob] = {}
    held, round_ = dict.fromkeys(texts, 0), 0
    for _ in range(6000):
        for name in list(texts):
            job, ids = jobs.get(name), texts[name]
            if job is not None and job.future.done():
                verdict: Verdict = jobs.pop(name).future.result()
                assert verdict.error is None and not verdict.prefix_missing
                assert verdict.path is None or len(verdict.path) == verdict.num_accepted
                held[name] = len(ids) + verdict.num_accepted  # as the engine must have it now
                ids = texts[name] = np.concatenate([ids, verdict.tokens])
            if len(ids) >= len(wanted[name]):
                assert ids[: len(wanted[name])].tolist() == wanted[name].tolist()
                batch.close(name)
                del texts[name]
            elif name not in jobs and rng.random() < 0.7:
                round_ += 1
                draft = a_tree(ids, int(rng.integers(0, 14)), 0.7, rng, next_id, VOCAB)
                jobs[name] = verify_job(name, ids, held[name], round_, draft, spec, VOCAB)
                batch.attach(jobs[name])
        if not texts:
            break
        if not batch.step():
            clock.now += 0.2
        batch.kv.check_integrity()
    assert not texts
    assert batch.num_active == 0 and batch.kv.num_free == num_pages


class Path(Job):
    """Feeds a tree and keeps a path of it, whatever the logits say."""

    def __init__(self, context: Context, tokens: Ids, parents: Ids | None, path: Sequence[int]) -> None:
        super().__init__(context, Future())
        self._tokens, self._parents, self._keep = tokens, parents, tuple(path)
        self.logits = torch.empty(0)

    def draft_ids(self) -> Ids:
        """As told."""
        return self._tokens

    def draft_parents(self) -> Ids | None:
        """As told."""
        return self._parents

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Remember them."""
        self.logits = torch.from_numpy(np.stack([logits.row(i) for i in range(len(logits))]))
        self.path = self._keep
        self.num_decided = len(history_ids) + len(self._keep)
        self.future.set_result(None)
        return None

    def fail(self, error: Exception) -> None:
        """As it is."""
        self.future.set_exception(error)


def on_gpu(architecture: str, page: int) -> ModelRunner:
    model = tiny_model(architecture)
    pack_linears(model, "fp32", "portable")
    spec = tiny_spec(kv_tokens=1024, page_tokens=page)
    return GpuRunner(model, spec, GpuOptions(max_graph_rows=16), kernels=PlainKernels(page), graphs=FakeGraphs())


RUNNERS: dict[str, Callable[[int], ModelRunner]] = {
    "fused": lambda page: tiny_runner("llama", kv_tokens=1024, page_tokens=page),
    "fused-sliding-int8": lambda page: tiny_runner(
        "mistral-sliding", kv_tokens=1024, page_tokens=page, kv_dtype="int8"
    ),
    "fused-bfloat16": lambda page: tiny_runner("qwen3", kv_tokens=1024, page_tokens=page, kv_dtype="bfloat16"),
    "layers": lambda page: tiny_runner("gpt2", kv_tokens=1024, page_tokens=page),
    "portable": lambda page: tiny_runner("llama", kv_tokens=1024, page_tokens=page, kernels="portable"),
    "gpu": lambda page: on_gpu("llama", page),
}


@pytest.mark.exactness
@pytest.mark.parametrize("page", [1, 4, 16, 64])
@pytest.mark.parametrize("kind", RUNNERS)
def test_after_a_tree_a_sequence_goes_on_with_the_bits_of_one_that_never_saw_it(kind: str, page: int) -> None:
    runner = RUNNERS[kind](page)
    spec = tiny_spec(kv_tokens=1024, page_tokens=page)
    batch, rng = Batch(runner, spec, 1024), np.random.default_rng(page)
    for trial in range(6):
        text = rng.integers(0, 97, int(rng.integers(1, 140))).astype(np.int32)
        fed = np.empty(0, np.int32)
        for round_ in range(3):  # tree after tree, prefill in the same step as the first
            draft = a_tree(text, int(rng.integers(1, 30)), 0.0, rng, next_id, 95)
            assert draft.parents is not None
            tokens = np.clip(draft.tokens, 0, 96)
            path = lineage(draft.parents, int(rng.integers(-1, len(tokens))))
            start = 0 if round_ == 0 else int(rng.integers(0, len(text)))
            context = Context("tree", start, text[start:], 1, len(text), SamplingParams(), round_)
            finish(batch, Path(context, tokens, draft.parents, path))
            batch.kv.check_integrity()
            fed = np.concatenate([text, tokens[path]])
            text = np.append(fed, rng.integers(97)).astype(np.int32)
        assert batch.kv.tokens("tree").tolist() == fed.tolist()
        after = finish(batch, Path(Context("tree", len(fed), text[len(fed) :], 1, 1, SamplingParams(), 9),
                                   rng.integers(0, 97, 5).astype(np.int32), None, ()))
        later = np.concatenate([text, after._tokens])
        # What was decided is found by another sequence; a third one computes all of it.
        shared = finish(batch, Path(Context("shared", 0, text, 1, 1, SamplingParams(), 0), after._tokens, None, ()))
        assert shared.num_cached_tokens == len(fed) // page * page
        batch.close("tree")
        batch.close("shared")
        fresh = Batch(runner, spec, 1024)
        alone = finish(fresh, Path(Context("x", 0, text, 1, 1, SamplingParams(), 0), after._tokens, None, ()))
        batch = Batch(runner, spec, 1024)
        assert torch.equal(after.logits, alone.logits), f"trial {trial}, {len(later)} tokens"
        assert torch.equal(shared.logits, alone.logits)


def finish(batch: Batch, job: Path) -> Path:
    batch.attach(job)
    while batch.num_active:
        batch.step()
    job.future.result()
    return job


@pytest.mark.exactness
@pytest.mark.parametrize("kernels", ["native", "portable"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_with_trees_commits_what_plain_decoding_does(architecture: str, kernels: str) -> None:
    runner = tiny_runner(architecture, kv_tokens=1024, kernels=kernels)
    spec, rng = tiny_spec(kv_tokens=1024), np.random.default_rng(0)
    prompt = rng.integers(0, 97, 30).astype(np.int32)
    batch = Batch(runner, spec, 1024)

    def greedy(num_tokens: int, draft_of: Callable[[Ids], Draft]) -> tuple[list[int], int]:
        ids, rounds = prompt, 0
        while len(ids) < len(prompt) + num_tokens:
            rounds += 1
            job = verify_job("s", ids, min(len(ids), len(prompt)) if rounds > 1 else 0, rounds, draft_of(ids), spec, 97)
            batch.attach(job)
            while batch.num_active:
                batch.step()
            ids = np.concatenate([ids, job.future.result().tokens])
        batch.close("s")
        return ids[: len(prompt) + num_tokens].tolist(), rounds

    plain, _ = greedy(40, lambda ids: Draft(np.empty(0, np.int32)))

    def truth(path: Ids) -> int:
        return plain[len(path)] if len(path) < len(plain) else 0

    for right in (0.0, 0.4, 0.9):
        text, rounds = greedy(40, lambda ids, right=right: a_tree(ids, 12, right, rng, truth, 97))  # type: ignore[misc]
        assert text == plain
        assert right < 0.5 or rounds < 30
    batch.kv.check_integrity()


def one(draft: list[Draft], prompt: list[int] | None = None, **changes: Any) -> Verdict:
    """The verdict on a draft after a prompt."""
    batch, clock, _ = make(Hashing(10, 16), **changes)
    ids = np.array(prompt or [1, 2, 3], np.int32)
    job = VerifyJob(Context("s", 0, ids, len(ids), len(ids), SamplingParams(), 1), draft, 1, 64, False)
    job.clip_tree(batch._table._spec.tree_rows)
    job.stop_at_foreign_id(VOCAB)
    batch.attach(job)
    run(batch, clock, job)  # type: ignore[arg-type]
    verdict: Verdict = job.future.result()
    return verdict


def right_after(ids: list[int], count: int) -> list[int]:
    """What the model says after `ids`."""
    text = list(ids)
    for _ in range(count):
        text.append(next_id(np.array(text, np.int32)))
    return text[len(ids) :]


def tree_draft(tokens: list[int], parents: list[int], **more: Any) -> Draft:
    return Draft(np.array(tokens, np.int32), parents=np.array(parents, np.int32), tier=0, **more)


def test_the_verdict_names_the_accepted_path_and_counts_all_nodes() -> None:
    a, b, c = right_after([1, 2, 3], 3)
    wrong = (a + 1) % VOCAB
    verdict = one([tree_draft([wrong, a, b, (b + 1) % VOCAB], [-1, -1, 1, 1])])
    assert verdict.tokens.tolist() == [a, b, c]
    assert (verdict.path, verdict.num_accepted, verdict.num_draft) == ((1, 2), 2, 4)
    assert verdict.draft_tiers == (0, 0, 0, 0) and verdict.last is Origin.BONUS
    verdict = one([tree_draft([wrong, wrong], [-1, 0])])
    assert (verdict.tokens.tolist(), verdict.path, verdict.last) == ([a], (), Origin.RECOVERED)


def test_an_id_outside_the_vocabulary_is_rejected_and_its_siblings_are_still_looked_at() -> None:
    a, b = right_after([1, 2, 3], 2)
    verdict = one([tree_draft([VOCAB + 5, -3, a, 7], [-1, -1, -1, 0])])
    assert (verdict.tokens.tolist(), verdict.path, verdict.num_draft) == ([a, b], (2,), 4)


@pytest.mark.parametrize(
    "draft",
    [
        tree_draft([1, 2], [0, 0]), tree_draft([1, 2], [-1]), tree_draft([1, 2], [-1, -2]),
        tree_draft([1, 2], [-1, -1], laws=law_tools.build([])),
    ],
)
def test_a_draft_that_is_no_tree_makes_a_plain_step_that_says_so(draft: Draft) -> None:
    verdict = one([draft])
    assert (verdict.tokens.tolist(), verdict.last) == (right_after([1, 2, 3], 1), Origin.PLAIN)
    assert verdict.draft_error is not None and verdict.error is None


def test_a_tree_is_joined_to_nothing() -> None:
    tree, chain, nothing = tree_draft([1, 2], [-1, -1]), Draft(np.array([4], np.int32)), Draft(np.empty(0, np.int32))
    for pieces in ([tree, chain], [chain, tree], [tree, tree]):
        with pytest.raises(BadDraft, match="send it alone"):
            one(pieces)
    assert one([nothing, tree]).path is not None


def test_a_tree_larger_than_a_step_keeps_the_beginning_of_its_drawing_order() -> None:
    right = right_after([1, 2, 3], 20)
    chain = tree_draft(right, [*range(-1, 19)])
    verdict = one([chain], max_batch_tokens=12)
    assert verdict.tokens.tolist() == right[:10] and verdict.num_draft == 9


def test_a_tree_near_the_longest_context_loses_its_deepest_levels() -> None:
    job = VerifyJob(
        Context("s", 0, np.array([1], np.int32), 1, 1, SamplingParams(), 1),
        [tree_draft([4, 5, 6, 7, 8], [-1, 0, -1, 2, 1], laws=laws_of(5))], 1, 64, False,
    )
    job.clip(2)
    parents = job.draft_parents()
    assert parents is not None
    assert (job.draft_ids().tolist(), parents.tolist()) == ([4, 5, 6, 7], [-1, 0, -1, 2])
    job.clip(1)
    assert job.draft_ids().tolist() == [4, 6] and job._laws is not None and job._laws.ids.tolist() == [0, 2]
    job.on_logits(LogitRows(torch.eye(20)[[6, 9, 9]]), np.array([1], np.int32))
    assert job.path == (1,) and job.future.result().path == (2,)  # as fed, and as the drafter numbers its nodes
    job.clip(0)
    assert job.draft_parents() is None and len(job.draft_ids()) == 0


def laws_of(count: int) -> Any:
    return law_tools.build([(np.array([i], np.int32), np.ones(1, np.float32)) for i in range(count)])


def test_a_tree_that_nobody_clipped_is_refused_with_what_to_change() -> None:
    batch, _, _ = make(Hashing(10, 16), max_batch_tokens=12)
    job = Path(Context("s", 0, np.array([1], np.int32), 1, 1, SamplingParams(), 1),
               np.zeros(10, np.int32), np.full(10, -1, np.int32), ())
    batch.attach(job)
    with pytest.raises(SequenceRejected, match="raise max_batch_tokens"):
        job.future.result(0)


class Broken(Hashing):
    """Fails the steps it is told to."""

    fail = False

    def forward(self, step: StepInput) -> torch.Tensor:
        """Zeros, or an error."""
        if self.fail:
            raise RuntimeError("boom")
        return super().forward(step)


def test_what_a_failed_pass_may_have_left_unmoved_is_forgotten() -> None:
    runner = Broken(10, 4)
    batch, clock, _ = make(runner, page_tokens=4, kv_tokens=40)
    text = np.array([1, 2, 3], np.int32)
    a, b, c = right_after([1, 2, 3], 3)
    spec = ModelSpec(1, "x", page_tokens=4, kv_tokens=40)
    job = verify_job("s", text, 0, 1, tree_draft([0, 0, a, b], [-1, -1, -1, 2]), spec, VOCAB)
    batch.attach(job)
    batch.step()
    assert job.future.result().path == (2, 3)
    text = np.concatenate([text, job.future.result().tokens])
    runner.fail = True
    other = verify_job("other", text, 0, 1, Draft(np.empty(0, np.int32)), spec, VOCAB)
    batch.attach(other)
    batch.step()
    assert "boom" in str(other.future.result().error)
    runner.fail = False
    batch.kv.check_integrity()
    for name in ("s", "third"):
        job = verify_job(name, text, 3 if name == "s" else 0, 2, Draft(np.empty(0, np.int32)), spec, VOCAB)
        batch.attach(job)
        run(batch, clock, job)  # type: ignore[arg-type]
        assert job.future.result().tokens.tolist() == right_after(text.tolist(), 1)
        assert job.num_cached_tokens == 0 or name == "third"


def test_a_step_with_a_tree_survives_the_way_to_other_ranks() -> None:
    rows = np.arange(6, dtype=np.int32)
    step = StepInput(rows, rows, rows, rows[:2], rows[:1], rows, rows[:2], rows, np.array([[1, 2]], np.int32),
                     np.array([[3, 4], [5, 6]], np.int32), rows - 1)  # fmt: skip
    back = StepInput.unpack(step.pack())
    for name in StepInput.__slots__:
        np.testing.assert_array_equal(getattr(back, name), getattr(step, name))



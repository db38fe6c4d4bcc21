"""The runner of an `eagle` head computes what its module does, however rows are cut, placed, mixed and cut back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engine.gpu.runner import GpuOptions, GpuRunner
from actors.engine.headed import EagleRunner
from actors.engine.linear import pack_linears
from actors.engine.native.fused import FusedRunner
from actors.engine.packing import Part, pack
from actors.engine.runner import LocalRunner
from actors.engine.step import TakesFeatures
from actors.heads.eagle import EagleHead
from actors.heads.vocab import LEAST_LOGIT
from actors.spec import ModelSpec
from tests.models import VOCAB, tiny_spec
from tests.unit.engine.gpu.fakes import FakeGraphs
from tests.unit.engine.gpu.oracle import PlainKernels
from tests.unit.heads.fresh import fresh_head

PAGE, NUM_PAGES, LENGTH = 16, 24, 60


def runner_of(head: EagleHead, **spec: object) -> EagleRunner:
    return EagleRunner(head, tiny_spec(kv_tokens=NUM_PAGES * PAGE, page_tokens=PAGE, max_batch_tokens=128, **spec))


@dataclass
class Text:
    """A sequence fed by hand: `known` leading positions have features in the plane."""

    seed: int
    pages: np.ndarray
    length: int = LENGTH
    known: int = 0
    ids: np.ndarray = field(init=False)
    features: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.ids = rng.integers(0, VOCAB, self.length).astype(np.int32)
        self.features = rng.normal(size=(self.length, 2 * 64)).astype(np.float16)

    def part(self, start: int, end: int, known: int) -> Part:
        """Rows [start, end), with the features up to `known` that are not in the plane yet; all logits."""
        given = (self.known, self.features[self.known : known]) if known > self.known else None
        self.known = max(self.known, known)
        return Part(self.ids[start:end], start, self.pages[: -(-end // PAGE)], end - start, None, given)

    def want(self, head: EagleHead, num_steps: int = 1) -> list[torch.Tensor]:
        """Logits of the drafted ids, per step [length - step, num_ids]."""
        tokens, features = torch.from_numpy(self.ids).long()[None], torch.from_numpy(self.features)[None]
        return [head.logits(x)[0] for x in head(tokens, features, num_steps)]


def texts(*seeds: int) -> list[Text]:
    order = np.random.default_rng(9).permutation(NUM_PAGES).astype(np.int32)
    return [Text(seed, part) for seed, part in zip(seeds, np.array_split(order, len(seeds)), strict=True)]


def close(got: torch.Tensor, head: EagleHead, want: torch.Tensor, tolerance: float = 1e-4) -> bool:
    ids = head.vocabulary.ids
    others = np.delete(np.arange(VOCAB), ids)
    return bool((got[:, ids] - want).abs().max() < tolerance) and bool((got[:, others] == LEAST_LOGIT).all())


@pytest.mark.parametrize("kernels", ["native", "portable"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_logits_are_the_modules(num_layers: int, kernels: str) -> None:
    head = fresh_head(num_layers=num_layers)
    runner = runner_of(head, kernels=kernels)
    assert isinstance(runner, TakesFeatures)
    assert (runner.features_taken, runner.vocab_size) == (128, VOCAB)
    assert isinstance(runner._run_core.__self__, FusedRunner if kernels == "native" else LocalRunner)
    (text,) = texts(1)
    want = text.want(head, 4)
    got = runner.forward(pack([text.part(0, 50, 49)], PAGE))
    assert close(got, head, want[0][:50])
    for step in (1, 2, 3):  # on its own states
        got = runner.forward(pack([text.part(49 + step, 50 + step, 0)], PAGE))
        assert close(got, head, want[step][49:50])


@pytest.mark.parametrize("rows", [0, 64])
def test_captured_graphs_read_the_inputs_of_their_pass(rows: int) -> None:
    """On a device small steps are replayed: what changes between them must stand in memory that stays."""

    def make(model: Any, spec: ModelSpec) -> GpuRunner:
        pack_linears(model, "fp32", "portable")
        return GpuRunner(
            model, spec, GpuOptions(max_graph_rows=rows), kernels=PlainKernels(PAGE, False), graphs=FakeGraphs()
        )

    head = fresh_head(num_layers=2)
    spec = tiny_spec(kv_tokens=NUM_PAGES * PAGE, page_tokens=PAGE, max_batch_tokens=128, kernels="portable")
    runner = EagleRunner(head, spec, make)
    one, two = texts(1, 2)
    for start, end in ((0, 30), (30, 37), (37, 38)):
        got = runner.forward(pack([one.part(start, end, end), two.part(start, end, end - 1)], PAGE))
        assert close(got, head, torch.cat([text.want(head)[0][start:end] for text in (one, two)]))
    got = runner.forward(pack([two.part(38, 39, 0)], PAGE))  # on its own state
    assert close(got, head, two.want(head, 2)[1][37:38])


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_chunks_and_batches_change_nothing(data: st.DataObject) -> None:
    head = fresh_head()
    runner = runner_of(head)
    held = {text.seed: (text, 0) for text in texts(1, 2, 3)}
    while held:
        chosen = data.draw(st.lists(st.sampled_from(sorted(held)), min_size=1, unique=True))
        parts, expected = [], []
        for seed in chosen:
            text, start = held.pop(seed)
            end = data.draw(st.integers(start + 1, min(LENGTH, start + 40)))
            known = data.draw(st.sampled_from([end - 1, end]))  # the last position's may come with the next rows
            parts.append(text.part(start, end, known))
            expected.append(text.want(head)[0][start:end])
            if end < LENGTH:
                held[seed] = (text, end)
        assert close(runner.forward(pack(parts, PAGE)), head, torch.cat(expected))


def test_a_row_keeps_its_bits_beside_others() -> None:
    head = fresh_head()
    runner = runner_of(head)
    one, two = texts(1, 2)
    alone = runner.forward(pack([one.part(0, 30, 29)], PAGE))
    one.known = 0
    beside = runner.forward(pack([two.part(0, 41, 40), one.part(0, 30, 29)], PAGE))
    assert torch.equal(beside[41:], alone)


def test_after_a_rollback_rows_are_run_again_on_the_features_of_what_was_accepted() -> None:
    head = fresh_head()
    runner = runner_of(head)
    (text,) = texts(1)
    truth = text.want(head)[0]
    runner.forward(pack([text.part(0, 20, 19)], PAGE))
    drafted = Text(5, text.pages)  # other tokens, on own states
    for row in (20, 21, 22):
        runner.forward(pack([Part(drafted.ids[row : row + 1], row, text.pages[:2], 1)], PAGE))
    got = runner.forward(pack([text.part(20, 24, 23)], PAGE))
    assert close(got, head, truth[20:24])


def test_rows_of_a_tree_read_the_state_of_their_parent() -> None:
    """Each node's logits are those of its path run as a chain."""
    head = fresh_head()
    runner = runner_of(head)
    (text,) = texts(1)
    rng = np.random.default_rng(4)
    nodes = rng.integers(0, VOCAB, 6).astype(np.int32)
    parents = np.array([-1, -1, 0, 0, 1, 2], np.int32)
    paths = ([0], [1], [0, 2], [0, 3], [1, 4], [0, 2, 5])

    def chain(path: list[int], features: np.ndarray) -> torch.Tensor:
        tokens = torch.from_numpy(np.concatenate([text.ids[:20], nodes[path]])).long()[None]
        given = torch.from_numpy(np.concatenate([text.features[:20], features[path]]))[None]
        return head.logits(head(tokens, given)[0])[0, -1]

    features = rng.normal(size=(6, 128)).astype(np.float16)
    want = torch.stack([chain(path, features) for path in paths])
    runner.forward(pack([text.part(0, 20, 20)], PAGE))
    slots = [int(text.pages[p // PAGE]) * PAGE + p % PAGE for p in range(20, 26)]
    runner._plane[slots] = runner._states(features)  # as if each node had been run before on such states
    got = runner.forward(pack([Part(nodes, 20, text.pages[:2], 6, parents)], PAGE))
    assert close(got, head, want)


def test_pages_that_are_copied_take_their_states_along() -> None:
    head = fresh_head()
    runner = runner_of(head)
    (text,) = texts(1)
    truth = text.want(head)[0]
    runner.forward(pack([text.part(0, 20, 20)], PAGE))
    old, new = text.pages[1], text.pages[5]
    forked = Text(1, text.pages.copy(), known=20)
    forked.pages[1] = new
    got = runner.forward(pack([forked.part(20, 28, 27)], PAGE, copies=[(int(old), int(new))]))
    assert close(got, head, truth[20:28])
    got = runner.forward(pack([text.part(20, 28, 27)], PAGE))  # the first one is as it was
    assert close(got, head, truth[20:28])


def test_tokens_that_are_moved_take_their_states_along() -> None:
    head = fresh_head()
    runner = runner_of(head)
    (text,) = texts(1)
    truth = text.want(head)[0]
    runner.forward(pack([text.part(0, 20, 20)], PAGE))
    slots = [int(text.pages[p // PAGE]) * PAGE + p % PAGE for p in range(30)]
    moves = np.array([[slots[19], slots[25]]], np.int32), np.array([[slots[25], slots[19]]], np.int32)
    other = Text(7, np.setdiff1d(np.arange(NUM_PAGES, dtype=np.int32), text.pages[:2]))
    runner.forward(pack([other.part(0, 3, 2)], PAGE, moves=[moves[0]]))
    runner._plane[slots[19]] = 0
    got = runner.forward(pack([text.part(20, 22, 21)], PAGE, moves=[moves[1]]))
    assert close(got, head, truth[20:22])


def test_a_chunk_without_wanted_logits_leaves_the_state_of_its_last_row() -> None:
    """The row after it may read that, if features go no further."""
    head = fresh_head()
    runner = runner_of(head)
    (text,) = texts(1)
    part = text.part(0, 20, 19)
    nothing = Part(part.ids, 0, part.pages, 0, None, part.given)
    assert runner.forward(pack([nothing], PAGE)).shape == (0, VOCAB)
    got = runner.forward(pack([text.part(20, 21, 0)], PAGE))
    assert close(got, head, text.want(head, 2)[1][19:20])


def test_pages_of_another_text_that_held_bad_numbers_do_no_harm() -> None:
    head = fresh_head()
    runner = runner_of(head)
    (text,) = texts(1)
    runner._plane[: NUM_PAGES * PAGE] = float("nan")
    assert close(runner.forward(pack([text.part(0, 30, 29)], PAGE)), head, text.want(head)[0][:30])


@pytest.mark.parametrize(("weights", "tolerance"), [("bf16", 0.1), ("int8", 0.1), ("w8a8", 0.3), ("int4", 3.0)])
def test_small_weights_stay_close(weights: str, tolerance: float) -> None:
    head = fresh_head()
    runner = runner_of(head, weights=weights)
    (text,) = texts(1)
    got = runner.forward(pack([text.part(0, 30, 29)], PAGE))
    assert close(got, head, text.want(head)[0][:30], tolerance)


def test_half_precision_states_stay_close() -> None:
    head = fresh_head()
    runner = runner_of(head, dtype="bfloat16", weights="bf16")
    (text,) = texts(1)
    got = runner.forward(pack([text.part(0, 30, 29)], PAGE))
    assert close(got, head, text.want(head)[0][:30], 0.2)
    assert runner._plane.dtype == torch.bfloat16

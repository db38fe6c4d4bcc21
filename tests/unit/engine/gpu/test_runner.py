"""The runner of a device, on the CPU: everything but Triton, capture and replay themselves.

`PlainKernels` reads the work items in PyTorch; `FakeGraphs` replays by running the body again and refuses what a
captured stream would refuse. Linears are packed, so their rows are independent and bits can be compared.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from actors.engine.gpu.buckets import Buckets
from actors.engine.gpu.contract import Reduction
from actors.engine.gpu.launch import TritonKernels, TritonMissing
from actors.engine.gpu.runner import GpuOptions, GpuRunner
from actors.engine.linear import pack_linears
from actors.engine.probe import UnsupportedAttention
from actors.engine.step import Int32s
from tests.models import ARCHITECTURES, tiny_model, tiny_spec
from tests.unit.engine.gpu.fakes import FakeGraphs, HostRead, NoHostReads, Pages, random_tree
from tests.unit.engine.gpu.oracle import PlainKernels
from tests.unit.engine.test_plane import LAYERS, close, hidden_states
from tests.unit.engine.test_tree import lineage

PAGE = 16


def make(
    architecture: str = "llama", rows: int = 16, bits: bool = False, graphs: FakeGraphs | None = None, **spec: Any
) -> GpuRunner:
    model = tiny_model(architecture)
    pack_linears(model, "fp32", "portable")
    return GpuRunner(
        model, tiny_spec(kv_tokens=1024, page_tokens=PAGE, **spec), GpuOptions(max_graph_rows=rows),
        kernels=PlainKernels(PAGE, bits), graphs=graphs or FakeGraphs(),
    )


def ids_of(count: int, seed: int = 0) -> Int32s:
    return np.random.default_rng(seed).integers(0, 97, count).astype(np.int32)


def feed(runner: GpuRunner, pages: Pages, sequence: int, ids: Int32s, chunk: int) -> torch.Tensor:
    """The whole sequence in chunks: logits of every row."""
    steps = [pages.step([(sequence, i, ids[i : i + chunk])]) for i in range(0, len(ids), chunk)]
    return torch.cat([runner.forward(step) for step in steps])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_replayed_and_large_steps_agree_with_plain_transformers(architecture: str) -> None:
    runner, ids = make(architecture), ids_of(90)
    with torch.inference_mode():
        plain = tiny_model(architecture)(torch.from_numpy(ids).long()[None]).logits[0].float()
    for chunk in (5, 40):
        paged = feed(runner, Pages(runner.num_pages, PAGE, 1, seed=chunk), 0, ids, chunk)
        assert (plain - paged).abs().max() < 2e-4
    assert runner.counts.num_replayed == 18 + 1 and runner.counts.num_large == 2


@pytest.mark.exactness
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_a_bucket_its_padding_and_its_last_step_leave_no_trace_in_the_logits(architecture: str) -> None:
    eager, ids, other = make(architecture, rows=0), ids_of(60), ids_of(60, seed=1)
    alone = feed(eager, Pages(eager.num_pages, PAGE, 2), 0, ids, 1)
    assert eager.counts.num_replayed == 0
    runner = make(architecture)
    pages = Pages(runner.num_pages, PAGE, 2, seed=9)
    rng, rows, i, j = np.random.default_rng(0), [], 0, 0
    while i < len(ids):  # buckets of 1 to 16 rows, at random offsets in the batch
        n, k = int(rng.integers(1, 7)), int(rng.integers(1, 7))
        parts = [(0, i, ids[i : i + n])]
        if j < len(other):
            parts.insert(int(rng.integers(0, 2)), (1, j, other[j : j + k]))
        offset = len(parts[0][2]) if parts[0][0] == 1 else 0
        rows.append(runner.forward(pages.step(parts))[offset : offset + len(ids[i : i + n])])
        i, j = i + n, j + k
    assert torch.equal(torch.cat(rows), alone)
    assert runner.counts.num_replayed == len(rows) and len(runner._captured) > 2


@pytest.mark.exactness
@pytest.mark.parametrize("rows", [0, 32])
@pytest.mark.parametrize("architecture", ["llama", "mistral-sliding"])
def test_a_tree_walked_path_by_path_gives_the_bits_of_its_tokens_fed_one_by_one(architecture: str, rows: int) -> None:
    runner, ids = make(architecture, rows=rows), ids_of(70)
    parents = random_tree(11, np.random.default_rng(5))
    drafted = ids_of(11, seed=2)
    pages = Pages(runner.num_pages, PAGE, 2)
    feed(runner, pages, 0, ids, 70)
    feed(runner, pages, 1, ids, 70)
    neighbour = ids_of(3, seed=4)
    chain = np.arange(-1, 2, dtype=np.int32)
    step = pages.step([(1, 70, neighbour), (0, 70, drafted)], [chain, parents])
    logits = runner.forward(step)[3:]
    for leaf in sorted(set(range(11)) - set(parents.tolist())):
        rows = lineage(parents, leaf)
        fresh = Pages(runner.num_pages, PAGE, 1, seed=3)
        feed(runner, fresh, 0, ids, 33)
        fed = [runner.forward(fresh.step([(0, 70 + i, drafted[row : row + 1])])) for i, row in enumerate(rows)]
        assert torch.equal(torch.cat(fed), logits[rows])


@pytest.mark.parametrize("architecture", ["llama", "mistral-sliding"])
def test_a_tree_masked_by_bits_agrees_with_its_paths_and_has_a_bucket_of_its_own(architecture: str) -> None:
    runner, ids = make(architecture, rows=64, bits=True), ids_of(70)
    parents = random_tree(40, np.random.default_rng(6))  # more than one word
    drafted = ids_of(40, seed=2)
    pages = Pages(runner.num_pages, PAGE, 1)
    feed(runner, pages, 0, ids, 70)
    logits = runner.forward(pages.step([(0, 70, drafted)], [parents]))
    assert any(shape.num_words == 2 for shape, _ in runner._captured)
    for row in (0, 17, 39):
        text = np.concatenate([ids, drafted[lineage(parents, row)]])
        fed = feed(runner, Pages(runner.num_pages, PAGE, 1, seed=3), 0, text, 70)[-1]
        assert (fed - logits[row]).abs().max() < 1e-4


@pytest.mark.exactness
def test_an_accepted_path_moved_to_its_place_is_as_if_fed_as_a_chain() -> None:
    runner, ids = make(), ids_of(30)
    parents = np.array([-1, -1, 0, 1, 1, 3], np.int32)
    drafted, more = ids_of(6, seed=2), ids_of(4, seed=3)
    pages = Pages(runner.num_pages, PAGE, 1)
    feed(runner, pages, 0, ids, 30)
    runner.forward(pages.step([(0, 30, drafted)], [parents]))
    slots = pages.slots(0, 30, 36)
    path = [1, 3, 5]
    moves = np.stack([slots[path], slots[:3]], axis=1)
    after = runner.forward(dataclasses.replace(pages.step([(0, 33, more)]), moves=moves))
    text = np.concatenate([ids, drafted[path], more])
    assert torch.equal(feed(runner, Pages(runner.num_pages, PAGE, 1, seed=1), 0, text, 7)[-4:], after)


def test_int8_keys_and_values_stay_close_and_take_about_a_quarter_of_the_memory() -> None:
    exact, small, ids = make(), make(kv_dtype="int8"), ids_of(90)
    a = feed(exact, Pages(exact.num_pages, PAGE, 1), 0, ids, 6)
    b = feed(small, Pages(small.num_pages, PAGE, 1), 0, ids, 6)
    assert not torch.equal(a, b)
    assert (a.softmax(-1) - b.softmax(-1)).abs().sum(-1).mean() < 0.1
    assert small.kv.bytes_per_token == exact.kv.bytes_per_token * (16 + 4) // (16 * 4)


def test_copied_pages_serve_another_sequence_and_the_scrub_page_stays_zero() -> None:
    for spec in ({}, {"kv_dtype": "int8"}):
        runner, ids = make(**spec), ids_of(PAGE + 5)
        pages = Pages(runner.num_pages, PAGE, 2)
        full = feed(runner, pages, 0, ids, 8)[-1]
        copies = np.stack([pages.tables[0][:2], pages.tables[1][:2]], axis=1)
        step = dataclasses.replace(pages.step([(1, PAGE + 4, ids[-1:])]), copies=copies)
        assert torch.equal(runner.forward(step)[-1], full)
        assert all(not t[runner.num_pages].any() for layer in runner.kv.layers for t in layer.tensors())
        scrub = np.array([[runner.num_pages, pages.tables[0][0]]], np.int32)
        runner.forward(dataclasses.replace(step, copies=scrub))
        assert not runner.kv.layers[0].keys[int(pages.tables[0][0])].any()


def test_only_the_rows_asked_for_come_back_and_none_may_be_asked_for() -> None:
    runner, ids = make(), ids_of(40)
    for count in (6, 40):
        pages = Pages(runner.num_pages, PAGE, 1)
        step = pages.step([(0, 0, ids[:count])])
        every = runner.forward(step)
        some = runner.forward(dataclasses.replace(step, logit_rows=np.array([1, 4], np.int32)))
        assert torch.equal(some, every[[1, 4]]) and some.dtype == torch.float32
        assert runner.forward(dataclasses.replace(step, logit_rows=np.empty(0, np.int32))).shape == (0, 97)


def test_logits_on_the_device_outlive_the_next_replay() -> None:
    runner = make()
    pages = Pages(runner.num_pages, PAGE, 2)
    first = runner.forward_device(pages.step([(0, 0, ids_of(4))]))
    kept = first.clone()
    runner.forward_device(pages.step([(1, 0, ids_of(4, seed=1))]))
    assert torch.equal(first, kept)


def test_warm_up_captures_every_bucket_once_and_says_how_far_it_is() -> None:
    graphs, seen = FakeGraphs(), []
    runner = make(graphs=graphs)
    runner.warm_up(lambda done, total: seen.append((done, total)))
    total = len(runner._buckets.all())
    assert seen == [(i, total) for i in range(1, total + 1)] and graphs.num_captured == total
    feed(runner, Pages(runner.num_pages, PAGE, 1), 0, ids_of(30), 7)
    assert graphs.num_captured == total


def test_a_failed_capture_is_told_once_counted_and_run_kernel_by_kernel(caplog: pytest.LogCaptureFixture) -> None:
    runner, ids = make(graphs=FakeGraphs(fail=True)), ids_of(30)
    with caplog.at_level(logging.WARNING):
        logits = feed(runner, Pages(runner.num_pages, PAGE, 1), 0, ids, 5)
    assert torch.equal(logits, feed(make(), Pages(64, PAGE, 1), 0, ids, 5))
    assert runner.counts.num_failed_captures == 1 and runner.counts.num_uncaptured == 6
    assert runner.counts.num_replayed == 0
    assert caplog.text.count("no CUDA graph for steps of up to 8 rows") == 1


def test_the_fake_graph_notices_a_body_that_looks_at_values() -> None:
    """Else the tests above would not show that an unchanged transformers model can be captured."""
    with pytest.raises(HostRead), NoHostReads():
        _ = torch.ones(3).sum().item()
    with pytest.raises(HostRead), NoHostReads():
        _ = torch.ones(3)[torch.ones(3) > 0].nonzero()


def test_a_tree_too_wide_for_its_bucket_runs_at_its_own_size() -> None:
    runner, ids = make(rows=64), ids_of(20)
    pages = Pages(runner.num_pages, PAGE, 1)
    feed(runner, pages, 0, ids, 20)
    comb = np.array([i - 1 if i < 32 else 31 for i in range(64)], np.int32)  # 32 leaves, each 33 deep
    large = runner.counts.num_large
    runner.forward(pages.step([(0, 20, ids_of(64, seed=1))], [comb]))
    assert runner.counts.num_large == large + 1


def test_buckets_round_up_and_end_where_the_model_does() -> None:
    buckets = Buckets(max_rows=48, max_pages=200)
    assert buckets.rows == (1, 2, 4, 8, 16, 32) and buckets.pages == (16, 64, 200)
    fitted = buckets.fit(5, 17, 3)
    assert fitted is not None and (fitted.num_rows, fitted.num_pages, fitted.num_words) == (8, 64, 4)
    assert buckets.fit(33, 1) is None and buckets.fit(1, 201) is None
    assert buckets.all()[0] == max(buckets.all()) and len(buckets.all()) == 18
    assert Buckets(0, 200).all() == []


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_attention_that_the_kernels_lack_is_refused_in_one_line(family: str) -> None:
    small: dict[str, Any] = {
        "vocab_size": 97, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 2, "num_experts_per_tok": 1,
    }
    model = tf.AutoModelForCausalLM.from_config(tf.AutoConfig.for_model(family, **small)).eval()
    with pytest.raises(UnsupportedAttention, match="use a model without") as refusal:
        GpuRunner(model, tiny_spec(page_tokens=PAGE), kernels=PlainKernels(PAGE), graphs=FakeGraphs())
    assert "\n" not in str(refusal.value)


def test_without_triton_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "actors.engine.gpu.kernels", None)
    with pytest.raises(TritonMissing, match=r"pip install 'outrider\[gpu\]'"):
        TritonKernels([], PAGE, Reduction.FAST, 1)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_replayed_and_large_steps_keep_the_features_of_transformers(architecture: str) -> None:
    ids = ids_of(60)
    wanted = hidden_states(architecture, ids)
    plain = make(architecture)
    for chunk in (5, 40):
        runner = make(architecture, feature_layers=LAYERS)
        pages = Pages(runner.num_pages, PAGE, 1, seed=chunk)
        steps = [pages.step([(0, i, ids[i : i + chunk])]) for i in range(0, len(ids), chunk)]
        slots = np.concatenate([step.slots for step in steps])
        for step in steps:
            assert torch.equal(runner.forward(step), plain.forward(step))
        assert close(torch.from_numpy(runner.features_at(slots)).float(), wanted)
        assert (runner.counts.num_replayed > 0) == (chunk == 5)

"""The Triton kernels against plain PyTorch: in Triton's interpreter, or on a device where there is one.

The interpreter shows what a kernel computes, not that it compiles (`test_compile`) nor how fast it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from actors.engine.gpu import launch
from actors.engine.gpu.contract import Kernels, Reduction
from actors.engine.gpu.launch import TritonKernels
from actors.engine.gpu.runner import GpuOptions, GpuRunner
from actors.engine.gpu.store import GpuKV
from actors.engine.gpu.tensors import Shape, StepTensors, longest_keys
from actors.engine.gpu.work import cut
from actors.engine.probe import Geometry
from actors.engine.step import Int32s
from tests.models import tiny_model, tiny_spec
from tests.unit.engine.gpu.fakes import FakeGraphs, Pages, random_tree
from tests.unit.engine.gpu.oracle import PlainKernels

pytest.importorskip("triton", reason="Triton is not installed: pip install 'outrider[gpu]'")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
PAGE = 16
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass
class Bench:
    """A store full of noise and one text's queries, keys and values, to be fed in any way."""

    geometry: Geometry
    length: int
    dtype: torch.dtype = torch.float32
    int8: bool = False
    window: int | None = None
    page: int = PAGE

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        g = self.geometry
        self.num_pages = 3 * -(-self.length // self.page) + 4
        self.queries, self.keys, self.values = (
            torch.randn(heads, self.length, g.head_dim, generator=generator).to(self.dtype).to(DEVICE)
            for heads in (g.num_heads, g.num_kv_heads, g.num_kv_heads)
        )

    def store(self) -> GpuKV:
        """Nothing but NaN: whatever a row must not read would show."""
        g = self.geometry
        kv = GpuKV(
            [(g.num_kv_heads, g.head_dim)], self.num_pages, self.page, torch.int8 if self.int8 else self.dtype, DEVICE
        )
        for tensor in kv.layers[0].tensors():
            if tensor.dtype == torch.int8:
                tensor.fill_(77)
            else:
                tensor.fill_(torch.nan)
        return kv

    def run(
        self, kernels: Kernels, kv: GpuKV, pages: Pages, parts: list[tuple[int, int, Int32s]],
        parents: list[Int32s] | None = None, room: Shape | None = None,
    ) -> torch.Tensor:
        """Write and attend `(sequence, start, rows of the text)`: [num_rows, num_heads, head_dim] on the CPU."""
        step = pages.step(parts, parents)
        together = None if parents is None else np.concatenate(parents)
        num_rows = len(step.input_ids)
        work = cut(
            step, self.page, kernels.rows_per_item(room.num_rows if room else num_rows), together,
            kernels.tree_by_bits,
        )
        tensors = StepTensors(room or Shape.of(work, num_rows), DEVICE)
        tensors.fill(step, work, kernels.split_keys(tensors.shape, longest_keys(step)), kv.trash_slot)
        text = tensors.input_ids.long()  # the row of the text that each row of the step is; padding is row 0
        scaling = self.geometry.head_dim**-0.5
        # Rows next to each other, heads apart: as a projection leaves them.
        query, key, value = (
            x[:, text].transpose(0, 1).contiguous().transpose(0, 1) for x in (self.queries, self.keys, self.values)
        )
        kernels.write(kv.layers[0], key, value, tensors)
        return kernels.attend(kv.layers[0], query, tensors, scaling, self.window)[:num_rows].cpu()

    def triton(self, reduction: Reduction = Reduction.FIXED) -> TritonKernels:
        return TritonKernels([self.geometry], self.page, reduction, num_multiprocessors=16)

    def plain(self, bits: bool) -> PlainKernels:
        return PlainKernels(self.page, bits)


def rows(start: int, end: int) -> Int32s:
    return np.arange(start, end, dtype=np.int32)


def both(bench: Bench, reduction: Reduction, steps: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernels and the oracle give for the last of `steps` (arguments of `Bench.run` after `pages`)."""
    results = []
    for kernels in (bench.triton(reduction), bench.plain(bits=reduction is Reduction.FAST)):
        kv, pages = bench.store(), Pages(bench.num_pages, bench.page, 3)
        results.append([bench.run(kernels, kv, pages, *step) for step in steps][-1])
    return results[0], results[1]


@pytest.mark.parametrize("reduction", list(Reduction))
@pytest.mark.parametrize(
    ("geometry", "dtype", "int8", "window", "page"),
    [
        (Geometry(4, 4, 64), torch.float32, False, None, 16),
        (Geometry(6, 2, 96), torch.float32, False, 20, 16),
        (Geometry(8, 2, 128), torch.bfloat16, False, None, 64),
        (Geometry(4, 1, 256), torch.float16, False, 33, 16),
        (Geometry(9, 3, 64), torch.bfloat16, True, None, 16),
        (Geometry(4, 2, 80), torch.float16, True, 20, 24),
        (Geometry(2, 1, 8), torch.float32, True, None, 5),
        (Geometry(71, 1, 64), torch.float32, False, None, 16),
    ],
    ids=str,
)
def test_mixed_batches_agree_with_dense_attention(
    geometry: Geometry, dtype: torch.dtype, int8: bool, window: int | None, page: int, reduction: Reduction
) -> None:
    bench = Bench(geometry, 80, dtype, int8, window, page)
    ours, oracle = both(
        bench, reduction,
        [
            ([(0, 0, rows(0, 61)), (1, 0, rows(0, 15))],),
            ([(1, 15, rows(15, 19)), (2, 0, rows(0, 1)), (0, 61, rows(61, 80))],),
        ],
    )
    assert (ours.float() - oracle.float()).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("reduction", list(Reduction))
def test_long_texts_in_several_splits_agree_with_dense_attention(
    reduction: Reduction, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "SPLIT_KEYS", 64)
    monkeypatch.setattr(launch, "MIN_SPLIT_KEYS", 64)
    bench = Bench(Geometry(2, 1, 16), 300, window=window)
    ours, oracle = both(bench, reduction, [([(0, 0, rows(0, 290))],), ([(0, 290, rows(290, 300))],)])
    assert (ours - oracle).abs().max() < 2e-5


@pytest.mark.parametrize("window", [None, 12])
@pytest.mark.parametrize("reduction", list(Reduction))
def test_a_tree_agrees_with_dense_attention_under_its_mask(reduction: Reduction, window: int | None) -> None:
    bench = Bench(Geometry(4, 2, 32), 100, window=window)
    tree = random_tree(40, np.random.default_rng(1))  # two words of bits
    chain = np.arange(-1, 4, dtype=np.int32)
    ours, oracle = both(
        bench, reduction,
        [
            ([(0, 0, rows(0, 30)), (1, 0, rows(0, 7))],),
            ([(1, 7, rows(7, 12)), (0, 30, rows(30, 70))], [chain, tree]),
        ],
    )
    assert (ours - oracle).abs().max() < 2e-5


@pytest.mark.exactness
@pytest.mark.parametrize("inner", [False, True], ids=["splits side by side", "splits in one program"])
@pytest.mark.parametrize(("int8", "window"), [(False, None), (True, None), (False, 50)])
def test_with_the_fixed_reduction_bits_do_not_depend_on_batch_chunk_pages_bucket_or_tree(
    int8: bool, window: int | None, inner: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "SPLIT_KEYS", 64)
    bench = Bench(Geometry(4, 2, 16), 143, int8=int8, window=window)
    kernels = bench.triton()

    def feed(ends: list[int], seed: int, limit_bytes: int) -> torch.Tensor:
        """The text in chunks that end at `ends`."""
        monkeypatch.setattr(launch, "MAX_WORKSPACE_BYTES", limit_bytes)
        kv, pages = bench.store(), Pages(bench.num_pages, PAGE, 3, seed)
        chunks = zip([0, *ends], ends, strict=False)
        return torch.cat([bench.run(kernels, kv, pages, [(0, i, rows(i, j))]) for i, j in chunks])

    alone = feed([50, 100, *range(124, 144)], seed=0, limit_bytes=1 << 30)  # one by one over the edge of a split
    limit_bytes = 0 if inner else 1 << 30
    for ends in ([7, 30, 61, 90, 125, 127, 130, 143], [128, 143], [143]):
        assert torch.equal(feed(ends, len(ends), limit_bytes), alone), f"chunks that end at {ends}"

    kv, pages = bench.store(), Pages(bench.num_pages, PAGE, 3, seed=5)
    bench.run(kernels, kv, pages, [(1, 0, rows(0, 33)), (0, 0, rows(0, 130))])
    room = Shape(num_rows=32, num_items=32, num_tail=128, num_sequences=32, num_pages=16)
    mixed = bench.run(kernels, kv, pages, [(1, 33, rows(33, 40)), (0, 130, rows(130, 141))], None, room)
    assert torch.equal(mixed[7:], alone[130:141]), "in a bucket, beside a neighbour"

    # Two branches that both spell the text: rows 141, 142 as 0 -> 2 and as 1 -> 3.
    parents = np.array([-1, -1, 0, 1], np.int32)
    branches = np.array([141, 141, 142, 142], np.int32)
    twice = bench.run(kernels, kv, pages, [(0, 141, branches)], [parents])
    assert torch.equal(twice, alone[[141, 141, 142, 142]]), "in a tree"


def test_the_fast_reduction_covers_every_key_whatever_the_shape() -> None:
    kernels = Bench(Geometry(8, 2, 64), 10, page=64).triton(Reduction.FAST)
    for num_rows in (1, 8, 64, 500):
        for num_pages in (1, 16, 300, 2000):
            shape = Shape(num_rows, num_rows, num_rows, num_rows, num_pages)
            for longest in {1, 300, shape.max_keys(64)}:
                split_keys = kernels.split_keys(shape, longest)
                assert split_keys % 64 == 0
                assert split_keys * kernels._num_splits(shape) >= longest


@pytest.mark.parametrize("int8", [False, True])
def test_a_value_that_is_no_number_stays_none_for_its_text_and_touches_no_other(int8: bool) -> None:
    bench = Bench(Geometry(4, 2, 32), 40, int8=int8)
    bench.keys[1, 3, 5] = torch.nan
    bench.values[0, 4, 7] = torch.inf
    kernels, kv, pages = bench.triton(), bench.store(), Pages(bench.num_pages, PAGE, 3)
    out = bench.run(kernels, kv, pages, [(0, 0, rows(0, 10)), (1, 0, rows(20, 30))])
    assert out[10:].isfinite().all(), "another text"
    assert not out[5:10, 2:].isfinite().all(-1).any(), "heads over the NaN key"
    assert not out[5:10, :2].isfinite().all(-1).any(), "heads over the infinite value"


@pytest.mark.parametrize(("reduction", "kv_dtype"), [(Reduction.FIXED, None), (Reduction.FIXED, "int8"),
                                                    (Reduction.FAST, None)])  # fmt: skip
def test_the_runner_gives_the_same_logits_over_triton_as_over_the_plain_kernels(
    reduction: Reduction, kv_dtype: str | None
) -> None:
    spec = tiny_spec(kv_tokens=512, page_tokens=PAGE, device=DEVICE, kv_dtype=kv_dtype)
    ids = np.random.default_rng(0).integers(0, 97, 40).astype(np.int32)
    tree = np.array([-1, -1, 0, 0], np.int32)
    outs = []
    for kernels in (TritonKernels([Geometry(4, 2, 16)], PAGE, reduction, 16), PlainKernels(PAGE)):
        model = tiny_model("mistral-sliding").to(DEVICE)
        runner = GpuRunner(model, spec, GpuOptions(max_graph_rows=4), kernels=kernels, graphs=FakeGraphs())
        pages = Pages(runner.num_pages, PAGE, 1)
        steps = [pages.step([(0, 0, ids[:32])]), pages.step([(0, 32, ids[32:36])])]
        steps.append(pages.step([(0, 36, ids[36:40])], [tree]))
        outs.append(torch.cat([runner.forward(step) for step in steps]))
        assert runner.counts.num_replayed == 2
    assert (outs[0] - outs[1]).abs().max() < 2e-4

"""What only a CUDA device can show: kernels at real sizes, captured graphs, ids and bits of whole models.

`pytest -m gpu` runs this together with the kernel tests, which then are compiled instead of interpreted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch

from actors.engine.gpu.contract import Reduction
from actors.engine.gpu.runner import GpuOptions, GpuRunner
from actors.engine.probe import Geometry
from actors.engine.step import Int32s
from actors.loading.checkpoint import load_model
from actors.spec import ModelSpec
from tests.unit.engine.gpu.fakes import Pages, random_tree
from tests.unit.engine.test_tree import lineage

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
pytest.importorskip("triton", reason="Triton is not installed: pip install 'outrider[gpu]'")

from tests.unit.engine.gpu.test_kernels import Bench, rows  # noqa: E402  # only where Triton is

PAGE = 64
NEAR_TIE = 1e-3  # against other kernels the two best logits may change places within this


class Inline:
    """`GraphMaker` that records nothing: the body runs, at the bucket's shape, when it is replayed."""

    class _Body:
        def __init__(self, body: Callable[[], None]) -> None:
            self.replay = body

    def capture(self, body: Callable[[], None]) -> _Body:
        body()
        return self._Body(body)


def make(model: str, dtype: str, options: GpuOptions, graphs: Inline | None = None) -> GpuRunner:
    spec = ModelSpec(
        tier=1, model=model, dtype=dtype, device="cuda", kv_tokens=8192, page_tokens=PAGE, max_context_tokens=4096
    )
    return GpuRunner(load_model(spec), spec, options, graphs=graphs)


def ids_of(count: int, vocab_size: int = 512, seed: int = 0) -> Int32s:
    return np.random.default_rng(seed).integers(4, vocab_size, count).astype(np.int32)


def feed(runner: GpuRunner, pages: Pages, ids: Int32s, ends: list[int]) -> torch.Tensor:
    chunks = zip([0, *ends], ends, strict=False)
    return torch.cat([runner.forward(pages.step([(0, i, ids[i:j])])) for i, j in chunks])


@pytest.mark.parametrize("reduction", list(Reduction))
@pytest.mark.parametrize("window", [None, 1000])
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("geometry", [Geometry(32, 8, 128), Geometry(32, 8, 64), Geometry(8, 4, 256)], ids=str)
def test_kernels_agree_with_dense_attention_at_real_sizes(
    geometry: Geometry, int8: bool, window: int | None, reduction: Reduction
) -> None:
    bench = Bench(geometry, 3100, torch.bfloat16, int8, window, PAGE)
    outs = []
    for kernels in (bench.triton(reduction), bench.plain(bits=reduction is Reduction.FAST)):
        kv, pages = bench.store(), Pages(bench.num_pages, PAGE, 3)
        kernels.write(kv.layers[0], bench.keys[:, :3000], bench.values[:, :3000], _slots(pages, 3000))
        parts = [(0, 3000, rows(3000, 3005)), (1, 0, rows(0, 3))]
        outs.append(bench.run(kernels, kv, pages, parts).float())
    assert (outs[0] - outs[1]).abs().max() < 3e-2


def _slots(pages: Pages, count: int) -> object:
    """The only part of a step that a write reads."""

    class Slots:
        slots = torch.from_numpy(pages.slots(0, 0, count)).cuda()

    return Slots


@pytest.mark.parametrize("reduction", list(Reduction))
@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-qwen3", "tiny-mistral", "tiny-gemma3"])
def test_a_replayed_graph_gives_the_bits_of_its_body(shape: str, reduction: Reduction) -> None:
    options = GpuOptions(reduction)
    replayed = make(f"random:{shape}", "bfloat16", options)
    inline = make(f"random:{shape}", "bfloat16", options, Inline())
    replayed.warm_up()
    assert replayed.counts.num_failed_captures == 0
    ids, ends = ids_of(300), [200, 201, 206, 214, 230, 262, 300]
    a, b = (feed(r, Pages(r.num_pages, PAGE, 1), ids, ends) for r in (replayed, inline))
    assert torch.equal(a, b) and a.isfinite().all()
    assert replayed.counts.num_replayed == 6 and replayed.counts.num_large == 1


@pytest.mark.exactness
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-qwen3", "tiny-mistral", "tiny-gemma3"])
def test_with_the_fixed_reduction_logits_do_not_depend_on_chunk_neighbour_pages_bucket_or_tree(
    shape: str, dtype: str
) -> None:
    runner = make(f"random:{shape}", dtype, GpuOptions(Reduction.FIXED))
    ids, other = ids_of(640), ids_of(640, seed=1)
    alone = feed(runner, Pages(runner.num_pages, PAGE, 1), ids, [300, *range(301, 641)])
    for ends in ([640], [64, 128, 640], [301, 306, 400, 463, 527, 640]):
        assert torch.equal(feed(runner, Pages(runner.num_pages, PAGE, 1, seed=len(ends)), ids, ends), alone)
    pages = Pages(runner.num_pages, PAGE, 2, seed=7)
    runner.forward(pages.step([(1, 0, other[:600]), (0, 0, ids[:630])]))
    mixed = runner.forward(pages.step([(1, 600, other[600:613]), (0, 630, ids[630:635])]))
    assert torch.equal(mixed[13:], alone[630:635])
    parents = random_tree(12, np.random.default_rng(3))
    drafted = ids_of(12, seed=5)
    in_tree = runner.forward(pages.step([(0, 635, drafted)], [parents]))
    for leaf in sorted(set(range(12)) - set(parents.tolist())):
        line = lineage(parents, leaf)
        text = np.concatenate([ids[:635], drafted[line]])
        fed = feed(runner, Pages(runner.num_pages, PAGE, 1), text, [635, *range(636, len(text) + 1)])
        assert torch.equal(fed[635:], in_tree[line])


@pytest.mark.parametrize("reduction", list(Reduction))
@pytest.mark.parametrize(("model", "dtype"), [("random:tiny-llama", "float32"), ("random:tiny-gemma3", "float32"),
                                              ("random:llama-1b", "bfloat16")])  # fmt: skip
def test_greedy_ids_are_those_of_transformers_but_for_near_ties(
    model: str, dtype: str, reduction: Reduction, caplog: pytest.LogCaptureFixture
) -> None:
    prompt, num_tokens = ids_of(50), 64
    spec = ModelSpec(tier=1, model=model, dtype=dtype, device="cuda")
    plain = load_model(spec)
    text = torch.from_numpy(prompt).long()[None].cuda()
    ids = plain.generate(text, max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False)[0].cpu()
    del plain
    with caplog.at_level(logging.WARNING):
        runner = make(model, dtype, GpuOptions(reduction))
        logits = feed(
            runner, Pages(runner.num_pages, PAGE, 1), ids[:-1].int().numpy(), [50, *range(51, 50 + num_tokens)]
        )[49:]
    logits[:, 0] = -torch.inf  # min_new_tokens forbids the end of the text
    best = logits.topk(2).values
    differ = (logits.argmax(-1) != ids[50:]).nonzero()[:, 0].tolist()
    tolerance = NEAR_TIE if dtype == "float32" else 0.1
    for i in differ:
        chosen = float(logits[i, ids[50 + i]])
        assert float(best[i, 0]) - chosen < tolerance, f"token {i}: {best[i, 0]} against {chosen}"
    assert len(differ) <= num_tokens // 8
    assert runner.counts.num_failed_captures == 0 and not caplog.records

"""A row of logits is a function of its own sequence alone, bit for bit (DESIGN 3.4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from actors.engine.step import ModelRunner
from tests.models import ARCHITECTURES, tiny_model, tiny_runner
from tests.tape import Tape
from tests.unit.engine.test_tree import lineage

pytestmark = pytest.mark.exactness

def ids_of(runner: ModelRunner, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, runner.vocab_size, count).astype(np.int32)


PATHS: list[dict[str, Any]] = [
    *({"weights": kind} for kind in ("fp32", "bf16", "int8", "w8a8", "int4")),
    {"kv_dtype": "int8"},
    {"page_tokens": 4},
    {"kv_dtype": "bfloat16"},
    *({"weights": kind, "kernels": "portable"} for kind in ("fp32", "int8")),
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: "-".join(map(str, path.values())))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_do_not_depend_on_chunking_neighbours_or_pages(architecture: str, path: dict[str, Any]) -> None:
    runner, page = tiny_runner(architecture, kv_tokens=1024, **path), path.get("page_tokens", 64)
    a, b = ids_of(runner, 200, 0), ids_of(runner, 150, 1)
    alone = Tape(runner, 2, 1, page).feed(0, a, 1)
    for chunk in (2, 3, 5, 7, 8, 16, 37, 64, 100, 200):
        assert torch.equal(Tape(runner, 2, 2, page).feed(0, a, chunk), alone), f"chunks of {chunk}"
    rng = np.random.default_rng(0)
    tape, rows, i, j = Tape(runner, 2, 3, page), [], 0, 0
    while i < len(a):
        n, k = int(rng.integers(1, 10)), int(rng.integers(1, 18))
        parts = [(0, i, a[i : i + n])]
        first = j < len(b) and rng.random() < 0.5
        if j < len(b):
            parts.insert(0 if first else 1, (1, j, b[j : j + k]))
        out = tape.run(parts)
        offset = len(parts[0][2]) if first else 0
        rows.append(out[offset : offset + len(a[i : i + n])])
        i, j = i + n, j + k
    assert torch.equal(torch.cat(rows), alone), "mixed batch"


@pytest.mark.parametrize("page_tokens", [64, 4])
@pytest.mark.parametrize("weights", ["fp32", "int8"])
@pytest.mark.parametrize("architecture", ["llama", "mistral-sliding", "gpt2"])
def test_logits_do_not_depend_on_the_number_of_threads(architecture: str, weights: str, page_tokens: int) -> None:
    """Threads cut a step's work by its rows, and few rows' keys by chunks (of 256): no cut must show."""
    settings = {"weights": weights, "kv_tokens": 1024, "page_tokens": page_tokens}
    one = tiny_runner(architecture, **settings, num_threads=1)
    ids = ids_of(one, 560, 0)
    alone = Tape(one, 1, 1, page_tokens).feed(0, ids, 1)
    torch.set_num_threads(3)
    try:
        three = tiny_runner(architecture, **settings, num_threads=3)
        for chunk in (1, 3, 16, 100, 560):
            assert torch.equal(Tape(three, 1, 2, page_tokens).feed(0, ids, chunk), alone), f"chunks of {chunk}"
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("weights", ["fp32", "int8", "int4"])
def test_a_rebuilt_replica_computes_the_same_bits(weights: str) -> None:
    ids = ids_of(tiny_runner("llama"), 90, 4)
    first, second = (tiny_runner.__wrapped__("llama", weights=weights) for _ in range(2))
    assert torch.equal(Tape(second, 1, seed=6).feed(0, ids, 5), Tape(first, 1, seed=5).feed(0, ids, 16))


@pytest.mark.parametrize("kernels", ["native", "portable"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_paged_logits_agree_with_plain_transformers(architecture: str, kernels: str) -> None:
    ids = ids_of(tiny_runner(architecture), 150, 7)
    with torch.inference_mode():
        plain = tiny_model(architecture)(torch.from_numpy(ids).long()[None]).logits[0].float()
    paged = Tape(tiny_runner(architecture, kernels=kernels), 1, seed=8).feed(0, ids, 33)
    assert (plain - paged).abs().max() < 2e-4


def tree_of(size: int, rng: np.random.Generator) -> np.ndarray:
    """Parents of a random tree: bushy or stringy."""
    near = int(rng.integers(1, 6))
    return np.array([rng.integers(max(-1, row - near), row) for row in range(size)], np.int32)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: "-".join(map(str, path.values())))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_row_of_a_tree_has_the_bits_of_its_tokens_fed_as_a_chain(architecture: str, path: dict[str, Any]) -> None:
    runner, page = tiny_runner(architecture, kv_tokens=1024, **path), path.get("page_tokens", 64)
    check_trees(runner, page, (0, 3, 41, 63, 64, 130, 250, 255))


@pytest.mark.parametrize("architecture", ["llama", "mistral-sliding", "gpt2"])
def test_a_trees_bits_do_not_depend_on_the_number_of_threads(architecture: str) -> None:
    torch.set_num_threads(3)
    try:
        check_trees(tiny_runner(architecture, kv_tokens=1024, num_threads=3), 64, (250, 300))
    finally:
        torch.set_num_threads(1)


def check_trees(runner: ModelRunner, page: int, lengths: tuple[int, ...]) -> None:
    """Trees after contexts of `lengths` tokens, a part of which is fed in the same step, beside neighbours."""
    for length in lengths:
        rng = np.random.default_rng(length)
        context, other = ids_of(runner, length, 0), ids_of(runner, 20, 1)
        parents = tree_of(int(rng.integers(2, 40)), rng)
        drafted = rng.integers(0, runner.vocab_size, len(parents)).astype(np.int32)
        tape, late = Tape(runner, 3, length, page), int(rng.integers(0, min(length, 12) + 1))
        tape.feed(0, context[: length - late], 50) if late < length else None
        fed = np.concatenate([np.arange(-1, late - 1), parents + late]).astype(np.int32)
        others = [np.arange(-1, 19), tree_of(20, rng)]
        got = tape.run(
            [(1, 0, other), (0, length - late, np.concatenate([context[length - late :], drafted])), (2, 0, other)],
            [others[0], fed, others[1]],
        )[20 + late : -20]
        alone = Tape(runner, 1, 99, page)
        alone.feed(0, context, 50) if length else None
        for node in sorted(set(range(len(parents))) - set(parents.tolist())):
            trail = lineage(parents, node)
            chain = alone.run([(0, length, drafted[trail])])
            assert torch.equal(got[trail], chain), f"node {node} after {length} tokens"

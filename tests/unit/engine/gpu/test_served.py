"""The engine over the device's runner: drafts, pressure on KV memory, rejected tails, many texts at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from actors.engine.engine import Engine
from actors.engine.gpu.runner import GpuOptions, GpuRunner
from actors.engine.linear import pack_linears
from actors.messages import Context, Draft, Ids, ReplicaInfo
from actors.sampling.params import SamplingParams
from actors.verifier import Verifier
from tests.models import tiny_model, tiny_spec
from tests.unit.engine.gpu.fakes import FakeGraphs
from tests.unit.engine.gpu.oracle import PlainKernels

PAGE = 16
NUM_TOKENS = 24


def greedy(model: Any, prompt: Ids) -> list[int]:
    """The model alone, by plain transformers."""
    ids = prompt.tolist()
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.exactness
@pytest.mark.parametrize("architecture", ["llama", "mistral-sliding"])
def test_committed_ids_are_those_of_the_model_alone_whatever_is_drafted(architecture: str) -> None:
    model = tiny_model(architecture)
    pack_linears(model, "fp32", "portable")
    # Room for about half of the texts at once: sequences are forgotten and computed anew.
    spec = tiny_spec(kv_tokens=12 * PAGE, page_tokens=PAGE, max_batch_tokens=48)
    runner = GpuRunner(model, spec, GpuOptions(max_graph_rows=16), kernels=PlainKernels(PAGE), graphs=FakeGraphs())
    info = ReplicaInfo(1, "tiny", runner.vocab_size, 1024, runner.num_pages, PAGE, "x")
    verifier = Verifier(Engine(runner, spec, 1024), info, law_support=8)
    rng = np.random.default_rng(0)
    shared = rng.integers(2, 97, 2 * PAGE).astype(np.int32)  # a prefix to find in the cache, pages to copy
    prompts = [np.concatenate([shared, rng.integers(2, 97, n).astype(np.int32)]) for n in (3, 9, 20, 5)]
    truth = [greedy(tiny_model(architecture), prompt) for prompt in prompts]
    texts: list[list[int]] = [[] for _ in prompts]
    num_accepted, round_ = 0, 0
    try:
        while any(len(text) < NUM_TOKENS for text in texts):
            round_ += 1
            futures = {}
            for s, text in enumerate(texts):
                if len(text) < NUM_TOKENS:
                    k = int(rng.integers(0, 6))
                    ids = np.array(truth[s][len(text) : len(text) + k], np.int32)
                    ids = np.where(rng.random(len(ids)) < 0.3, rng.integers(2, 97, len(ids)), ids).astype(np.int32)
                    context = np.concatenate([prompts[s], np.array(text, np.int32)])
                    futures[s] = verifier.verify(
                        Context(
                            f"s{s}", 0, context, len(prompts[s]), len(context), SamplingParams(temperature=0.0), round_
                        ),
                        [Draft(tokens=ids)],
                    )
            for s, future in futures.items():
                verdict = future.result(60)
                assert verdict.error is None
                num_accepted += verdict.num_accepted
                texts[s] += verdict.tokens.tolist()
        verifier.engine.check_integrity()
    finally:
        verifier.shutdown()
    assert [text[:NUM_TOKENS] for text in texts] == truth
    assert num_accepted > 20 and runner.counts.num_replayed > 10

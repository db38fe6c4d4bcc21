"""Greedy ids of a loaded model in the engine, judged by another implementation of the same law."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import torch

from tests.models import VOCAB

PROMPTS = [np.random.default_rng(seed).integers(2, VOCAB, 12 + seed).tolist() for seed in range(6)]


def engine_ids(model: Any, prompts: list[list[int]], num_tokens: int, **changes: Any) -> list[list[int]]:
    """What our engine says after each prompt, with fp32 weights; takes `model` over. `changes` go to its spec."""
    from actors.engine.make import make_runner
    from actors.sampling.params import SamplingParams
    from cluster.coordinator.ladder import Ladder
    from cluster.coordinator.request import GenerationRequest
    from tests.local_tier import LocalTier, verifier
    from tests.models import tiny_spec
    from tests.unit.test_exactness import answer

    spec = tiny_spec(**{"kv_tokens": 4096, **changes})
    tier = LocalTier(verifier(make_runner(model, spec), spec))

    async def all_at_once() -> list[list[int]]:
        requests = [
            GenerationRequest(f"g{i}", np.array(prompt, np.int32), SamplingParams(), max_tokens=num_tokens)
            for i, prompt in enumerate(prompts)
        ]
        return [got.ids for got in await asyncio.gather(*(answer(Ladder([tier]), request) for request in requests))]

    try:
        return asyncio.run(all_at_once())
    finally:
        tier.worker.shutdown()


def count_near_ties(law: Any, prompts: list[list[int]], ids: list[list[int]], tolerance: float) -> int:
    """Places where `law`, a transformers model told our ids, prefers another by less than `tolerance`; else fails."""
    num_near = 0
    for prompt, ours in zip(prompts, ids, strict=True):
        with torch.inference_mode():
            logits = law(torch.tensor([prompt + ours[:-1]])).logits[0, len(prompt) - 1 :].float()
        gaps = logits.max(-1).values - logits.gather(1, torch.tensor(ours)[:, None])[:, 0]
        assert gaps.max() < tolerance, f"token {int(gaps.argmax())} differs, {gaps.max():.4f} below the best"
        num_near += int((gaps > 0).sum())
    return num_near


def num_distinct(ids: list[list[int]]) -> int:
    """Different tokens in all texts: a constant text would prove little."""
    return len({token for text in ids for token in text})

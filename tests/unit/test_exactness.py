"""The promise on tiny models: real engines and the real coordinator in one process."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from actors.drafter_specs import NgramSpec
from actors.drafters.ngram import NgramDrafter
from actors.messages import Context, Draft, Laws, Origin
from actors.sampling.params import SamplingParams
from actors.sampling.processors import process
from actors.verifier import Verifier
from cluster.coordinator.errors import GenerationFailed
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, FinishReason, GenerationRequest, TokenEvent
from cluster.coordinator.settings import CoordinatorSettings
from tests.local_tier import LocalTier, RandomDrafter, model_drafter, verifier
from tests.models import VOCAB, tiny_model, tiny_runner, tiny_spec

pytestmark = pytest.mark.exactness

PATIENT = CoordinatorSettings(draft_timeout_s=60)  # ids are on trial here, not the speed of this machine


@dataclass
class Answer:
    """A finished stream."""

    ids: list[int]
    origins: list[Origin]
    logprobs: list[float]
    finish: Finish


async def answer(ladder: Ladder, request: GenerationRequest) -> Answer:
    ids: list[int] = []
    origins: list[Origin] = []
    logprobs: list[float] = []
    finish = None
    async for event in generate(request, ladder):
        if isinstance(event, TokenEvent):
            ids += event.token_ids.tolist()
            origins += event.origins
            logprobs += [x.logprob for x in event.logprobs or ()]
        else:
            finish = event
    assert finish is not None
    return Answer(ids, origins, logprobs, finish)


class House:
    """A target, a middle tier and drafters over tiny models; closed and checked after each test."""

    def __init__(self, architecture: str = "llama", **path: Any) -> None:
        """`path`: how the target runs."""
        runner = tiny_runner(architecture, kv_tokens=16384, **path)
        self.target = LocalTier(verifier(runner, tiny_spec(tier=2, kv_tokens=16384)))
        near = tiny_runner("llama", weights="int8", kv_tokens=16384)
        self.middle = LocalTier(verifier(near, tiny_spec(tier=1, kv_tokens=16384)))
        near0 = tiny_runner("llama", weights="int8", kv_tokens=16385)  # its own KV tensors
        self.near = LocalTier(model_drafter(near0, tiny_spec(tier=0, kv_tokens=16385)))
        same = tiny_runner("llama", kv_tokens=16385)
        self.same = LocalTier(model_drafter(same, tiny_spec(tier=0, kv_tokens=16385)))
        self.ngram = LocalTier(NgramDrafter(NgramSpec()))
        self.random = LocalTier(RandomDrafter(VOCAB))
        self.tiers = (self.target, self.middle, self.near, self.same, self.ngram, self.random)

    def ladder(self, name: str) -> Ladder:
        match name:
            case "plain":
                return Ladder([self.target])
            case "three":
                return Ladder([self.near, self.middle, self.target], windows=[6], settings=PATIENT)
            case _:
                return Ladder([getattr(self, name), self.target], settings=PATIENT)

    def ask(self, name: str, *requests: GenerationRequest) -> list[Answer]:
        async def all_at_once() -> list[Answer]:
            return list(await asyncio.gather(*(answer(self.ladder(name), r) for r in requests)))

        return asyncio.run(all_at_once())

    def close(self) -> None:
        for tier in self.tiers:
            assert tier.leases == []
            engine = getattr(tier.worker, "engine", None)
            if engine is not None:
                engine.check_integrity()
                assert engine.stats().num_sequences == 0
                assert engine.stats().num_free_pages == engine.stats().num_pages
            tier.worker.shutdown()


@pytest.fixture
def house() -> Iterator[House]:
    torch.set_num_threads(1)
    it = House()
    yield it
    it.close()


def request(name: str, seed: int = 0, **changes: object) -> GenerationRequest:
    prompt = np.random.default_rng(seed).integers(2, VOCAB, 20 + seed % 7).astype(np.int32)
    values: dict[str, object] = {"sampling": SamplingParams(), "max_tokens": 40, "lookahead": 4, **changes}
    return GenerationRequest(request_id=name, prompt_ids=prompt, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("drafter", ["near", "ngram", "random", "three"])
def test_greedy_ids_are_those_of_the_target_alone(house: House, drafter: str, k: int) -> None:
    plain = house.ask("plain", *(request(f"p{i}", i) for i in range(4)))
    together = house.ask(drafter, *(request(f"s{i}", i, lookahead=k) for i in range(4)))
    assert [a.ids for a in together] == [a.ids for a in plain]
    assert sum(a.finish.figures.drafted for a in together) > 0
    (alone,) = house.ask(drafter, request("alone", 3, lookahead=k))
    assert alone.ids == plain[3].ids


def test_greedy_ids_are_those_of_plain_transformers_except_at_near_ties(house: House) -> None:
    near_ties = 0
    model = tiny_model("llama")
    for i, got in enumerate(house.ask("near", *(request(f"s{i}", i) for i in range(8)))):
        ids = request("x", i).prompt_ids.tolist()
        for token in got.ids:
            with torch.inference_mode():
                best = model(torch.tensor([ids])).logits[0, -1].topk(2)
            if best.indices[0] != token:
                assert best.values[0] - best.values[1] < 1e-3
                near_ties += 1
            ids.append(token)
    assert near_ties <= 2


def test_a_draft_equal_to_the_target_is_always_accepted(house: House) -> None:
    (got,) = house.ask("same", request("s", max_tokens=200, lookahead=4))
    figures = got.finish.figures
    assert figures.drafted > 100
    assert figures.accepted == figures.drafted


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_a_seed_fixes_the_text_whatever_drafts_neighbours_and_k(house: House, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=11, top_k=40, repetition_penalty=1.1)
    (plain,) = house.ask("plain", request("p", sampling=sampling))
    for drafter in ("near", "ngram", "random", "same", "three"):
        for k in (1, 7):
            mixed = [request(f"n{i}", i, sampling=SamplingParams(temperature=1.0, seed=i)) for i in range(1, 3)]
            got = house.ask(drafter, request(f"s{k}", sampling=sampling, lookahead=k), *mixed)
            assert got[0].ids == plain.ids, (drafter, k)


KERNEL_PATHS: list[dict[str, Any]] = [
    *({"weights": kind} for kind in ("bf16", "int8", "w8a8", "int4")),
    {"kv_dtype": "int8"},
    {"kv_dtype": "bfloat16"},
    {"weights": "int4", "kv_dtype": "int8"},
    {"num_threads": 3},
    {"architecture": "gemma3", "weights": "int8"},
    {"architecture": "gpt2", "weights": "int8"},  # layer by layer
    *({"weights": kind, "kernels": "portable"} for kind in ("fp32", "int8")),
]


@pytest.mark.parametrize("path", KERNEL_PATHS, ids=lambda path: "-".join(map(str, path.values())))
def test_every_kernel_keeps_greedy_and_seeded_ids(path: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    house = House(**path)
    seeded = SamplingParams(temperature=0.9, seed=5)
    asked = [request(f"r{i}", i, sampling=seeded if i % 2 else SamplingParams()) for i in range(4)]
    try:
        plain = [house.ask("plain", one)[0].ids for one in asked]
        for drafter, k in (("near", 4), ("random", 3), ("three", 16), ("near", 1)):
            together = house.ask(drafter, *(dataclasses.replace(one, lookahead=k) for one in asked))
            assert [a.ids for a in together] == plain, (drafter, k)
            assert sum(a.finish.figures.drafted for a in together) > 0
    finally:
        house.close()


def test_unseeded_requests_differ(house: House) -> None:
    texts = {
        tuple(a.ids)
        for a in house.ask(
            "near", *(request(f"u{i}", sampling=SamplingParams(temperature=1.5, entropy=i)) for i in range(4))
        )
    }
    assert len(texts) == 4


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.9, seed=3)])
def test_stop_ids_cut_at_every_place_of_a_block(house: House, sampling: SamplingParams) -> None:
    (plain,) = house.ask("plain", request("p", sampling=sampling, max_tokens=16))
    for place in range(len(plain.ids)):
        stop = plain.ids[place]
        first = plain.ids.index(stop)
        (got,) = house.ask("near", request("s", sampling=sampling, max_tokens=16, stop_ids=frozenset({stop})))
        assert got.ids == plain.ids[: first + 1]
        assert got.finish.reason is FinishReason.STOP


@pytest.mark.parametrize("max_tokens", range(1, 7))
def test_max_tokens_is_never_passed(house: House, max_tokens: int) -> None:
    (plain,) = house.ask("plain", request("p", max_tokens=max_tokens))
    (got,) = house.ask("same", request("s", max_tokens=max_tokens, lookahead=4))
    assert got.ids == plain.ids
    assert len(got.ids) == max_tokens
    assert got.finish.reason is FinishReason.LENGTH


def test_min_tokens_keeps_end_ids_away_and_no_longer(house: House) -> None:
    (plain,) = house.ask("plain", request("p"))
    end = plain.ids[3]
    sampling = SamplingParams(min_tokens=10, eos_ids=(end,))
    (a,) = house.ask("plain", request("p", sampling=sampling, stop_ids=frozenset({end})))
    (b,) = house.ask("near", request("s", sampling=sampling, stop_ids=frozenset({end})))
    assert a.ids == b.ids
    assert end not in a.ids[:10]


@pytest.mark.parametrize("sampling", [SamplingParams(num_logprobs=2), SamplingParams(1.0, seed=1, num_logprobs=2)])
def test_logprobs_are_the_targets_own_and_one_per_token(house: House, sampling: SamplingParams) -> None:
    (got,) = house.ask("near", request("s", sampling=sampling, max_tokens=32))
    assert len(got.logprobs) == len(got.ids) == 32
    ids = torch.tensor([*request("s").prompt_ids.tolist(), *got.ids])
    with torch.inference_mode():
        own = tiny_model("llama")(ids[None]).logits[0, -33:-1].log_softmax(-1)
    wanted = own.gather(1, ids[-32:, None])[:, 0]
    assert np.abs(np.array(got.logprobs) - wanted.numpy()).max() < 1e-4


@pytest.mark.parametrize(("drafter", "block"), [("near", True), ("ngram", False), ("three", True)])
def test_the_law_of_the_second_token_is_the_targets(house: House, drafter: str, block: bool) -> None:
    """Through engine, coordinator and rounds: chi-square of the second token, given the first is forced."""
    prompt = request("x").prompt_ids
    (first,) = house.ask("plain", request("p", max_tokens=1))
    sampling = SamplingParams(
        temperature=1.2, top_k=8, block_verification=block, logit_bias=((first.ids[0], 0.0),)
    )
    ids = np.append(prompt, first.ids).astype(np.int32)
    with torch.inference_mode():
        logits = tiny_model("llama")(torch.from_numpy(ids).long()[None]).logits[0, -1]
    law = process(logits, sampling, ids, len(ids)).exp().double().numpy()
    counts = np.zeros(VOCAB)
    total = 400  # the chi-square on 20,000 samples is in tests/unit/sampling; here the whole path is on trial

    def one(i: int) -> GenerationRequest:
        unseeded = SamplingParams(temperature=1.2, top_k=8, block_verification=block, entropy=i)
        return GenerationRequest(f"r{i}", ids, unseeded, max_tokens=3, lookahead=2)

    for start in range(0, total, 40):
        for got in house.ask(drafter, *(one(i) for i in range(start, start + 40))):
            counts[got.ids[0]] += 1
    likely = law * total >= 5
    observed = np.append(counts[likely], counts[~likely].sum())
    expected = np.append(law[likely], law[~likely].sum()) * total
    keep = expected > 0
    assert counts[law == 0].sum() == 0
    assert stats.chisquare(observed[keep], expected[keep] * observed[keep].sum() / expected[keep].sum()).pvalue > 1e-3


def poison(tier: LocalTier, after: int) -> Callable[[], None]:
    """Make the tier's runner answer NaN from its `after`-th pass on; returns the cure."""
    batch = tier.worker.engine._batch  # type: ignore[union-attr]
    healthy, calls = batch._runner.forward, iter(range(10**9))
    batch._finder = batch._decoder = None  # what the kernels find by themselves would be healthy still

    def forward(step: object) -> torch.Tensor:
        logits: torch.Tensor = healthy(step)
        return logits * torch.nan if next(calls) >= after else logits

    batch._runner = type("Sick", (), {"forward": staticmethod(forward), "vocab_size": VOCAB})()

    def cure() -> None:
        batch._runner = type("Cured", (), {"forward": staticmethod(healthy), "vocab_size": VOCAB})()

    return cure


def test_nan_in_the_draft_means_plain_steps_and_says_so(house: House) -> None:
    (plain,) = house.ask("plain", request("p"))
    poison(house.near, after=6)
    (got,) = house.ask("near", request("s"))
    assert got.ids == plain.ids
    assert got.finish.figures.degraded_steps > 0


def test_nan_in_the_target_is_a_clear_error_and_leaves_no_trace(house: House) -> None:
    (plain,) = house.ask("plain", request("p"))
    cure = poison(house.target, after=3)
    with pytest.raises(GenerationFailed, match="NaN"):
        house.ask("near", request("s"))
    cure()
    (again,) = house.ask("plain", request("q"))
    assert again.ids == plain.ids


def test_a_draft_context_shorter_than_the_targets_means_plain_steps(house: House) -> None:
    short = LocalTier(
        model_drafter(
            tiny_runner("llama", weights="int8", kv_tokens=16386),
            tiny_spec(tier=0, kv_tokens=16386, max_context_tokens=32),
        )
    )
    house.tiers += (short,)

    async def run() -> Answer:
        return await answer(Ladder([short, house.target]), request("s"))

    (plain,) = house.ask("plain", request("p"))
    got = asyncio.run(run())
    assert got.ids == plain.ids
    assert 0 < got.finish.figures.drafted < 40


def test_a_prompt_at_the_context_limit_yields_one_token_or_an_error_but_never_hangs(house: House) -> None:
    def at(length: int, max_tokens: int) -> GenerationRequest:
        ids = np.random.default_rng(1).integers(2, VOCAB, length).astype(np.int32)
        return GenerationRequest("edge", ids, SamplingParams(), max_tokens=max_tokens, lookahead=4)

    assert len(house.ask("near", at(1024, 1))[0].ids) == 1
    with pytest.raises(GenerationFailed, match="context"):
        house.ask("near", at(1025, 1))


def test_cancelled_requests_leave_no_page_behind(house: House) -> None:
    async def run() -> None:
        rng = np.random.default_rng(0)

        async def one(i: int) -> None:
            stream = generate(request(f"c{i}", i, max_tokens=24), house.ladder("near"))
            stop_after = int(rng.integers(1, 4)) if rng.random() < 0.3 else 10**9
            async for _ in stream:
                stop_after -= 1
                if stop_after == 0:
                    break
            await stream.aclose()

        for start in range(0, 200, 20):
            await asyncio.gather(*(one(i) for i in range(start, start + 20)))

    asyncio.run(run())  # the fixture checks free pages, leases and integrity


def test_kv_pressure_recomputes_instead_of_failing() -> None:
    runner = tiny_runner("llama", kv_tokens=384)
    tier = LocalTier(verifier(runner, tiny_spec(tier=2, kv_tokens=384)))
    roomy = LocalTier(verifier(tiny_runner("llama", kv_tokens=16384), tiny_spec(tier=2, kv_tokens=16384)))

    async def run(where: LocalTier) -> list[list[int]]:
        requests = [request(f"r{i}", i, max_tokens=80, lookahead=0) for i in range(6)]
        return [a.ids for a in await asyncio.gather(*(answer(Ladder([where]), r) for r in requests))]

    assert asyncio.run(run(tier)) == asyncio.run(run(roomy))
    for where in (tier, roomy):
        where.worker.engine.check_integrity()  # type: ignore[union-attr]
        where.worker.shutdown()


def test_a_prompt_seen_before_is_found_in_the_prefix_cache_and_says_so(house: House) -> None:
    prompt = np.random.default_rng(9).integers(2, VOCAB, 200).astype(np.int32)

    def ask(name: str) -> GenerationRequest:
        return GenerationRequest(name, prompt, SamplingParams(), max_tokens=8, lookahead=4)

    first, again = house.ask("near", ask("a"))[0], house.ask("near", ask("b"))[0]
    assert first.finish.usage.num_cached_tokens == 0
    assert again.finish.usage.num_cached_tokens == 192  # whole pages of 64, the last token is always run
    assert again.ids == first.ids


def test_a_draft_with_laws_that_cannot_be_its_own_means_a_plain_step(house: House) -> None:
    worker = house.target.worker
    assert isinstance(worker, Verifier)
    prompt = request("x").prompt_ids
    sampling = SamplingParams(temperature=1.0, entropy=1)
    context = Context("s", 0, prompt, len(prompt), len(prompt), sampling, 0)
    other = Laws(np.array([6], np.int32), np.ones(1, np.float32), np.array([0, 1], np.int32))
    lie = Draft(np.array([5], np.int32), other)
    verdict = worker.verify(context, [lie]).result(timeout=60)
    assert (len(verdict.tokens), verdict.num_draft, verdict.last) == (1, 0, Origin.PLAIN)
    assert verdict.draft_error is not None
    assert "outside the law" in verdict.draft_error
    worker.close("s")

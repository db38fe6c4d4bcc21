"""A draft model with another tokenizer changes nothing of what the target says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from actors.drafters.model import DraftJob, ModelDrafter
from actors.drafters.translate.base import TranslatingDrafter
from actors.drafters.translate.intersection import IntersectionDrafter, SharedJob
from actors.drafters.translate.spelling import UnsuitableTokenizer
from actors.drafters.translate.text import TextDrafter
from actors.messages import AheadPlan, Context, Draft, DraftShape, ReplicaInfo
from actors.sampling.params import SamplingParams
from actors.sampling.processors import process
from cluster.bench.local import local_drafter, local_verifier
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import GenerationRequest
from tests.local_tier import LocalTier
from tests.soft_model import MAX_CONTEXT_TOKENS, soft_spec
from tests.unit.drafters.translate.conftest import SAID, Recital, Reciter, follow, spelling
from tests.unit.test_exactness import PATIENT, Answer, answer

pytestmark = pytest.mark.exactness

TARGET = "merged"
LAWS = Recital(TARGET, apart=0.0, salt=1)
WAYS = [("intersection", "spaced"), ("intersection", "bytes"), ("text", "spaced"), ("text", "bytes")]
GREEDY = SamplingParams()


def translating(way: str, kind: str, **changes: Any) -> TranslatingDrafter:
    spec = soft_spec(0, **changes)
    inner: ModelDrafter = local_drafter(Reciter(spec, Recital(kind, apart=0.3, salt=2)), spec, MAX_CONTEXT_TOKENS)
    info = replace(inner.info(), vocab_size=LAWS.vocab_size)
    if way == "text":
        return TextDrafter(inner, spelling(kind), spelling(TARGET), info)
    return IntersectionDrafter(inner, spelling(kind), spelling(TARGET), info, law_support=64)


class House:
    """The target, alone and before each translating drafter; nothing may be left in any engine."""

    def __init__(self) -> None:
        spec = soft_spec(1)
        self.target = LocalTier(local_verifier(Reciter(spec, LAWS), spec, MAX_CONTEXT_TOKENS))
        self.drafters = {way: LocalTier(translating(*way)) for way in WAYS}

    def ask(self, way: tuple[str, str] | None, *requests: GenerationRequest) -> list[Answer]:
        tiers = [self.target] if way is None else [self.drafters[way], self.target]

        async def all_at_once() -> list[Answer]:
            return list(await asyncio.gather(*(answer(Ladder(tiers, settings=PATIENT), r) for r in requests)))

        return asyncio.run(all_at_once())

    def close(self) -> None:
        check(self.target.worker.engine)  # type: ignore[union-attr]
        for tier in self.drafters.values():
            assert tier.leases == [] and isinstance(tier.worker, TranslatingDrafter)
            check(tier.worker._inner.engine)
            assert not tier.worker._sequences
        for tier in (self.target, *self.drafters.values()):
            tier.worker.shutdown()


def check(engine: Any) -> None:
    engine.check_integrity()
    assert engine.stats().num_sequences == 0
    assert engine.stats().num_free_pages == engine.stats().num_pages


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    it = House()
    yield it
    it.close()


def request(name: str, start: int, sampling: SamplingParams = GREEDY, k: int = 6, max_tokens: int = 60,
            ) -> GenerationRequest:
    ids = spelling(TARGET).encode(SAID[start : start + 100].decode()).ids
    return GenerationRequest(name, np.array(ids, np.int32), sampling, max_tokens, lookahead=k)


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_greedy_and_seeded_ids_are_those_of_the_target_alone(house: House, way: tuple[str, str]) -> None:
    samplings = [GREEDY, SamplingParams(temperature=0.7, seed=5, top_k=30, repetition_penalty=1.1),
                 SamplingParams(repetition_penalty=1.2, logit_bias=((40, 3.0),))]
    asked = [request(f"{i}", 97 * i, samplings[i % 3], k=(1, 4, 9)[i % 3]) for i in range(9)]
    plain = house.ask(None, *asked)
    got = house.ask(way, *(replace(one, request_id=f"d{one.request_id}") for one in asked))
    assert [a.ids for a in got] == [a.ids for a in plain]
    greedy = [a.finish.figures for a in got[::3]]
    assert sum(f.accepted for f in greedy) > 20, "inconclusive"
    assert sum(a.finish.figures.degraded_steps for a in got) == 0


@pytest.mark.parametrize("block", [False, True], ids=["tokens", "blocks"])
@pytest.mark.parametrize("way", [WAYS[0], WAYS[1], WAYS[2]], ids="-".join)
def test_the_law_of_the_text_is_the_targets(house: House, way: tuple[str, str], block: bool) -> None:
    """Chi-square of pairs of tokens, through drafts of two and more."""
    one = request("law", 300)
    base = SamplingParams(temperature=1.0, top_k=4, block_verification=block)
    total, counts = 400, Counter[tuple[int, int]]()
    for start in range(0, total, 100):
        asked = [
            replace(one, request_id=f"{i}", sampling=replace(base, entropy=1000 * block + i), max_tokens=4, lookahead=3)
            for i in range(start, start + 100)
        ]
        for got in house.ask(way, *asked):
            counts[got.ids[0], got.ids[1]] += 1
    ids = one.prompt_ids.tolist()
    expected: dict[tuple[int, int], float] = {}
    for first, chance in law(ids, base).items():
        for second, then in law([*ids, first], base).items():
            expected[first, second] = total * chance * then
    assert counts.keys() <= expected.keys()
    likely = [pair for pair, n in expected.items() if n >= 5]
    rest = total - sum(expected[pair] for pair in likely)
    observed = [counts[pair] for pair in likely] + ([total - sum(counts[p] for p in likely)] if rest > 1 else [])
    wanted = np.array([expected[pair] for pair in likely] + ([rest] if rest > 1 else []))
    assert len(likely) >= 4
    assert stats.chisquare(observed, wanted * sum(observed) / wanted.sum()).pvalue > 1e-3


def law(ids: list[int], sampling: SamplingParams) -> dict[int, float]:
    place = 0
    for token in ids:
        place = follow(place, spelling(TARGET).pieces.get(token, b""))
    probs = process(LAWS.rows([place])[0], sampling, ids, len(ids)).exp().double()
    return {int(token): float(probs[token]) for token in probs.nonzero()[:, 0]}


def context(text: bytes, round_: int = 1, start: int = 0, sampling: SamplingParams = GREEDY) -> Context:
    ids = spelling(TARGET).encode(text.decode()).ids
    return Context("s", start, np.array(ids[start:], np.int32), len(ids), len(ids), sampling, round_)


def said(draft: Draft) -> bytes:
    return b"".join(spelling(TARGET).literal(token) for token in draft.tokens.tolist())


@pytest.mark.parametrize("kind", ["spaced", "bytes"])
def test_the_intersections_law_is_what_its_tokens_were_drawn_from(kind: str) -> None:
    drafter = translating("intersection", kind)
    own = Recital(kind, apart=0.3, salt=2).rows([follow(0, SAID[:80])])[0].numpy()
    shared = drafter._shared
    logits = own[shared.lower].astype(np.float64)
    probs = dict(zip(shared.upper.tolist(), np.exp(logits) / np.exp(logits).sum(), strict=True))
    draft = drafter.propose(context(SAID[:80], sampling=SamplingParams(1.0, entropy=3)), DraftShape(2)).result(60)
    assert draft.laws is not None and draft.laws.num_tokens == 2
    ids, q = draft.laws.at(0)
    best = sorted(probs, key=lambda token: -probs[token])[:64]
    assert set(ids.tolist()) == set(best)
    mass = sum(probs[token] for token in best)
    assert q == pytest.approx([probs[token] / mass for token in ids.tolist()], rel=1e-4)
    drafter.close("s")
    drafter.shutdown()


def test_text_drafts_are_point_masses_whatever_the_sampling() -> None:
    drafter = translating("text", "spaced")
    drafts = [
        drafter.propose(context(SAID[:80], round_, sampling=sampling), DraftShape(5)).result(60)
        for round_, sampling in enumerate([GREEDY, SamplingParams(1.0, entropy=3), SamplingParams(2.0, seed=1)])
    ]
    assert all(draft.laws is None and len(draft.tokens) for draft in drafts)
    assert len({tuple(draft.tokens.tolist()) for draft in drafts}) == 1
    drafter.close("s")
    drafter.shutdown()


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_what_the_engine_forgot_is_told_again_and_calls_are_checked(way: tuple[str, str]) -> None:
    drafter = translating(*way)
    first = drafter.propose(context(SAID[:80]), DraftShape(4)).result(60)
    drafter._inner.engine.close("s")
    again = drafter.propose(context(SAID[:90], 2), DraftShape(4)).result(60)
    assert first.error is None and again.error is None and not again.prefix_missing
    assert drafter.propose(context(SAID[:90], 3, start=500), DraftShape(4)).result(60).prefix_missing
    assert "stale" in (drafter.propose(context(SAID[:90], 1), DraftShape(4)).result(60).error or "")
    drafter.close("s", context(SAID[:95]).tokens)
    drafter._inner.engine.check_integrity()
    assert drafter.stats().num_sequences == 0
    drafter.shutdown()
    assert drafter.propose(context(SAID[:80]), DraftShape(2)).result(60).error


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_a_round_runs_what_is_new_and_not_the_whole_text(way: tuple[str, str]) -> None:
    drafter = translating(*way)
    drafter.propose(context(SAID[:300]), DraftShape(4)).result(60)
    before = drafter.stats().num_rows
    drafter.propose(context(SAID[:304], 2), DraftShape(4)).result(60)
    assert drafter.stats().num_rows - before <= 24
    drafter.close("s")
    drafter.shutdown()


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_what_follows_the_whole_draft_is_drafted_ahead(way: tuple[str, str]) -> None:
    drafter = translating(*way)
    draft = drafter.propose(context(SAID[:100]), DraftShape(4)).result(60)
    plan = AheadPlan(DraftShape(3), 4, 2, 400, 60.0)
    found = drafter.enumerate(context(SAID[:100], 2), draft, 1, plan).result(60)
    assert found.error is None and len(found.branches) <= 1  # none where the draft ends inside a character
    for branch in found.branches:
        assert branch.node == len(draft.tokens) - 1 and len(branch.draft.tokens) <= 3
    drafter.close("s")
    drafter.shutdown()


def test_tokenizers_with_nothing_in_common_are_refused_with_the_other_way() -> None:
    spec = soft_spec(0)
    inner = local_drafter(Reciter(spec, Recital("bytes", 0.0, 1)), spec, MAX_CONTEXT_TOKENS)
    info: ReplicaInfo = inner.info()
    with pytest.raises(UnsuitableTokenizer, match=r"share only \d+ tokens.*drafter.tokenizers: text"):
        IntersectionDrafter(inner, spelling("bytes"), spelling(TARGET), info, 64, fewest=10_000)
    inner.shutdown()


def test_a_draft_of_shared_tokens_looks_at_every_pass() -> None:
    """The engine may otherwise feed what the draft model likes best, in ids that are not the verifying tier's."""
    ids = np.array([1, 2, 3], np.int32)
    shared: Any = None  # not asked
    asked = Context("a", 0, ids, 3, 3, GREEDY, 1)
    job = SharedJob(asked, ids, shared, num_tokens=4, tier=0, law_support=8)
    assert DraftJob(asked, 4, 0, 8).num_greedy() == 4
    assert job.num_greedy() == 1

"""The promise with tiers in one process: real engines and the real coordinator, every mix of inline tiers and pools."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from actors.drafter_specs import NgramSpec
from actors.drafters.base import Drafter
from actors.drafters.cascade import CascadeDrafter
from actors.drafters.ngram import NgramDrafter
from actors.inline import InlineVerifier, RelayVerifier
from actors.messages import Context, Draft, DraftShape, Ids, ReplicaStats, Verdict
from actors.sampling.params import SamplingParams
from actors.sampling.processors import process
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import GenerationRequest
from cluster.coordinator.settings import CoordinatorSettings
from cluster.coordinator.tier import NO_TOKENS, DraftHandle, Lease
from tests.local_tier import LocalLease, LocalTier, RandomDrafter, model_drafter, verifier
from tests.models import VOCAB, tiny_model, tiny_runner, tiny_spec
from tests.unit.test_exactness import Answer, answer, request

pytestmark = pytest.mark.exactness

PATIENT = CoordinatorSettings(draft_timeout_s=60)
KV = 16384
WEIGHTS = ("int4", "w8a8", "int8")  # of the tiers below the target, smallest first
WINDOWS = (3, 4, 6)
LOOKAHEAD = 5


class InlineLease(LocalLease):
    """Steps instead of verifying where a drafter is inline: what the coordinator calls is a plain pass to it."""

    async def _verify(self, context: Context, drafts: tuple[DraftHandle | Draft, ...], want_laws: bool) -> Verdict:
        worker: Any = self._tier.worker
        pieces = [draft if isinstance(draft, Draft) else await draft.fetch() for draft in drafts]
        if isinstance(worker, InlineVerifier):
            return await asyncio.wrap_future(worker.step(context, DraftShape(LOOKAHEAD), pieces))
        return await asyncio.wrap_future(worker.verify(context, pieces, want_laws))


class InlineTier(LocalTier):
    """One replica of a process of several tiers."""

    async def lease(self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS) -> Lease:
        lease = InlineLease(self, sequence_id)
        self.leases.append(lease)
        return lease


class Broken(Drafter):
    """Fails in every way a lower tier may."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.pending: list[Future[Draft]] = []

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        future: Future[Draft] = Future()
        match self.way:
            case "raises":
                raise RuntimeError("broken")
            case "fails":
                future.set_exception(RuntimeError("broken"))
            case "says so":
                future.set_result(Draft(NO_TOKENS, error="broken"))
            case "forgets":
                future.set_result(Draft(NO_TOKENS, prefix_missing=True))
            case "lies":  # an id with a law that has no room for it
                ids = np.full(shape.num_tokens, VOCAB + 7, np.int32)
                future.set_result(Draft(ids))
            case "hangs":
                self.pending.append(future)
        return future

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Nothing is held."""

    def stats(self) -> ReplicaStats:
        return ReplicaStats(0, 0, 0, 0, 0, 0)

    def shutdown(self) -> None:
        """Nothing runs."""


Bottom = Callable[[], Drafter]


class Building:
    """Tiers of tiny models; `inline[i]` puts tier i into the process of tier i + 1."""

    def __init__(self, inline: Sequence[bool], bottom: Bottom | None = None) -> None:
        num_tiers = len(inline) + 1
        self.drafts: list[Any] = []
        self.engines: list[Any] = []
        self.processes: list[InlineTier] = []
        self.tops: list[int] = []
        worker: Any = None
        for tier in range(num_tiers):
            below, joined = worker, tier > 0 and inline[tier - 1]
            if tier > 0 and not joined:
                self._add(below, tier - 1)
            is_target = tier == num_tiers - 1
            spec = tiny_spec(tier=tier, kv_tokens=KV)
            runner = tiny_runner("llama", kv_tokens=KV, **({} if is_target else {"weights": WEIGHTS[tier]}))
            own: Any
            if tier == 0 and not is_target:
                own = bottom() if bottom is not None else model_drafter(runner, spec)
            else:
                own = verifier(runner, spec)
            if hasattr(own, "engine"):
                self.engines.append(own.engine)
            if not joined:
                worker = own
            elif not isinstance(below, Drafter):
                worker = RelayVerifier(below, own)
            elif is_target:
                worker = InlineVerifier(below, own)
            else:
                worker = CascadeDrafter(below, own, WINDOWS[tier - 1])
        self._add(worker, num_tiers - 1)

    def _add(self, worker: Any, top: int) -> None:
        self.processes.append(InlineTier(worker))
        self.tops.append(top)

    def ask(self, *requests: GenerationRequest) -> list[Answer]:
        windows = [WINDOWS[top] for top in self.tops[1:-1]]
        ladder = Ladder(self.processes, windows=windows, settings=PATIENT)

        async def all_at_once() -> list[Answer]:
            return list(await asyncio.gather(*(answer(ladder, r) for r in requests)))

        return asyncio.run(all_at_once())

    def close(self) -> None:
        for tier in self.processes:
            assert tier.leases == []
        for engine in self.engines:
            engine.check_integrity()
            assert engine.stats().num_sequences == 0
            assert engine.stats().num_free_pages == engine.stats().num_pages
        for tier in self.processes:
            tier.worker.shutdown()


Build = Callable[..., Building]


@pytest.fixture
def build() -> Iterator[Build]:
    torch.set_num_threads(1)
    built: list[Building] = []

    def make(*inline: bool, bottom: Bottom | None = None) -> Building:
        built.append(Building(inline, bottom))
        return built[-1]

    yield make
    for one in built:
        one.close()


MIXES = [mix for size in (1, 2, 3) for mix in itertools.product([False, True], repeat=size) if any(mix)]
SEEDED = SamplingParams(temperature=0.9, seed=5, top_k=40)


def names(mix: Sequence[bool]) -> str:
    return "-".join(["inline" if inline else "pool" for inline in mix])


@pytest.mark.parametrize("mix", MIXES, ids=names)
def test_greedy_and_seeded_ids_are_those_of_the_target_alone_in_every_mix(build: Build, mix: tuple[bool, ...]) -> None:
    asked = [request(f"r{i}", i, sampling=SEEDED if i % 2 else SamplingParams(), lookahead=3) for i in range(6)]
    plain, mixed = build(), build(*mix)
    together = mixed.ask(*asked)
    assert [a.ids for a in together] == [a.ids for a in plain.ask(*asked)]
    accepted, rounds = (sum(getattr(a.finish.figures, name) for a in together) for name in ("accepted", "rounds"))
    assert accepted > rounds / 2  # all tiers did their part
    (alone,) = mixed.ask(asked[3])
    assert alone.ids == together[3].ids


@pytest.mark.parametrize("mix", [(True,), (True, False), (True, True), (False, True), (True, True, True)], ids=names)
def test_the_law_of_the_second_token_is_the_targets_in_every_mix(build: Build, mix: tuple[bool, ...]) -> None:
    prompt = request("x").prompt_ids
    ids = np.append(prompt, build().ask(request("p", max_tokens=1))[0].ids).astype(np.int32)
    sampling = SamplingParams(temperature=1.2, top_k=8)
    with torch.inference_mode():
        logits = tiny_model("llama")(torch.from_numpy(ids).long()[None]).logits[0, -1]
    law = process(logits, sampling, ids, len(ids)).exp().double().numpy()
    house = build(*mix)
    counts, total = np.zeros(VOCAB), 400

    def one(i: int) -> GenerationRequest:
        unseeded = SamplingParams(temperature=1.2, top_k=8, entropy=i, block_verification=i % 2 == 0)
        return GenerationRequest(f"r{i}", ids, unseeded, max_tokens=4, lookahead=3)

    for start in range(0, total, 40):
        for got in house.ask(*(one(i) for i in range(start, start + 40))):
            counts[got.ids[0]] += 1
    likely = law * total >= 5
    observed = np.append(counts[likely], counts[~likely].sum())
    expected = np.append(law[likely], law[~likely].sum()) * total
    keep = expected > 0
    assert counts[law == 0].sum() == 0
    assert stats.chisquare(observed[keep], expected[keep] * observed[keep].sum() / expected[keep].sum()).pvalue > 1e-3


@pytest.mark.parametrize("way", ["raises", "fails", "says so", "forgets", "lies"])
@pytest.mark.parametrize("mix", [(True, False), (True, True), (True,)], ids=names)
def test_a_broken_lower_tier_leaves_the_tier_above_alone_and_the_text_as_it_is(
    build: Build, mix: tuple[bool, ...], way: str
) -> None:
    asked = [request(f"r{i}", i, sampling=SEEDED if i % 2 else SamplingParams()) for i in range(2)]
    broken = build(*mix, bottom=lambda: Broken(way))
    assert [a.ids for a in broken.ask(*asked)] == [a.ids for a in build().ask(*asked)]


@pytest.mark.parametrize("bottom", [lambda: RandomDrafter(VOCAB), lambda: NgramDrafter(NgramSpec())])
@pytest.mark.parametrize("mix", [(True, False), (True, True), (True,)], ids=names)
def test_ids_do_not_depend_on_a_lower_tier_without_a_model(
    build: Build, mix: tuple[bool, ...], bottom: Bottom
) -> None:
    asked = [request(f"r{i}", i, sampling=SEEDED if i % 2 else SamplingParams()) for i in range(2)]
    assert [a.ids for a in build(*mix, bottom=bottom).ask(*asked)] == [a.ids for a in build().ask(*asked)]


def context(round: int, tokens: Ids, start: int = 0, sampling: SamplingParams | None = None) -> Context:
    return Context("s", start, tokens[start:], 20, len(tokens), sampling or SamplingParams(), round)


def cascade(lower: Drafter | None = None, window: int = 3) -> CascadeDrafter:
    low = lower or model_drafter(tiny_runner("llama", weights="int4", kv_tokens=KV), tiny_spec(tier=0, kv_tokens=KV))
    upper = verifier(tiny_runner("llama", weights="int8", kv_tokens=KV), tiny_spec(tier=1, kv_tokens=KV))
    return CascadeDrafter(low, upper, window)


PROMPT = request("x").prompt_ids


@pytest.mark.parametrize("num_tokens", [1, 2, 7])
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1.0, entropy=3)])
def test_a_cascade_proposes_as_many_tokens_as_asked_for_with_a_law_each_when_sampled(
    num_tokens: int, sampling: SamplingParams
) -> None:
    drafter = cascade()
    draft = drafter.propose(context(1, PROMPT, sampling=sampling), DraftShape(num_tokens)).result(timeout=60)
    drafter.shutdown()
    assert (len(draft.tokens), draft.tier, draft.error) == (num_tokens, 1, None)
    if sampling.temperature == 0:
        assert draft.laws is None
        return
    assert draft.laws is not None
    assert draft.laws.num_tokens == num_tokens
    for i, token in enumerate(draft.tokens):
        ids, probs = draft.laws.at(i)
        assert token in ids
        assert probs.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("way", ["raises", "fails", "says so", "forgets"])
def test_a_cascade_over_a_broken_tier_drafts_alone_and_says_why(way: str) -> None:
    whole, broken = cascade(), cascade(Broken(way))
    good = whole.propose(context(1, PROMPT), DraftShape(6)).result(timeout=60)
    whole.shutdown()
    draft = broken.propose(context(1, PROMPT), DraftShape(6)).result(timeout=60)
    broken.shutdown()
    assert draft.tokens.tolist() == good.tokens.tolist()
    assert "the tier below tier 1 failed" in str(draft.error)


def test_a_later_call_supersedes_one_whose_lower_tier_hangs() -> None:
    lower = Broken("hangs")
    drafter = cascade(lower)
    first = drafter.propose(context(1, PROMPT), DraftShape(6))
    lower.way = "says so"
    second = drafter.propose(context(2, PROMPT), DraftShape(6)).result(timeout=60)
    assert len(second.tokens) == 6
    assert not first.done()
    lower.pending[0].set_result(Draft(np.array([5], np.int32)))
    drafter.shutdown()
    assert "later call" in str(first.result(timeout=60).error)


def test_stale_calls_and_missing_prefixes_are_told_apart() -> None:
    drafter = cascade()
    assert drafter.propose(context(4, PROMPT, start=3), DraftShape(2)).result(timeout=60).prefix_missing
    assert drafter.propose(context(5, PROMPT), DraftShape(2)).result(timeout=60).error is None
    stale = drafter.propose(context(4, PROMPT), DraftShape(2)).result(timeout=60)
    drafter.shutdown()
    assert "later call" in str(stale.error)


def test_what_one_tier_of_a_process_has_lost_is_told_it_again() -> None:
    drafter = cascade()
    first = drafter.propose(context(1, PROMPT), DraftShape(5)).result(timeout=60)
    longer = np.concatenate([PROMPT, first.tokens[:2]])
    drafter._lower.close("s")
    drafter._verifier.close("s")
    again = drafter.propose(context(2, longer, start=len(PROMPT)), DraftShape(3)).result(timeout=60)
    drafter.close("s", longer)
    lost = drafter.propose(context(3, longer, start=len(PROMPT)), DraftShape(3)).result(timeout=60)
    drafter.shutdown()
    assert again.error is None
    assert again.tokens.tolist() == first.tokens[2:].tolist()
    assert lost.prefix_missing


def test_a_failing_verifier_hands_on_what_was_drafted_below_with_its_laws() -> None:
    drafter = cascade()
    sampling = SamplingParams(temperature=1.0, entropy=1)
    sick: Future[Verdict] = Future()
    sick.set_exception(RuntimeError("out of order"))
    drafter._verifier.verify = lambda *_: sick  # type: ignore[method-assign]
    draft = drafter.propose(context(1, PROMPT, sampling=sampling), DraftShape(6)).result(timeout=60)
    drafter.shutdown()
    assert (len(draft.tokens), draft.tier) == (3, 0)
    assert draft.laws is not None
    assert draft.laws.num_tokens == 3
    assert "out of order" in str(draft.error)


def test_counters_cover_both_tiers() -> None:
    drafter = cascade()
    drafter.propose(context(1, PROMPT), DraftShape(5)).result(timeout=60)
    found = drafter.stats()
    drafter.close("s")
    drafter._lower.between_steps(lambda: None)
    drafter.shutdown()
    assert found.num_pages == 2 * KV // 64
    assert found.num_sequences == 1
    assert found.extra["below.num_rows"] > len(PROMPT)
    after = drafter.stats()
    assert (after.num_sequences, after.num_free_pages) == (0, after.num_pages)


def test_sequences_of_one_step_stay_together_on_their_way_through_the_tiers() -> None:
    """Were they passed on one by one, the verifier would take a step for each."""
    drafter = cascade(window=3)
    futures = []
    for i in range(24):
        one = context(1, PROMPT)
        named = Context(f"s{i}", 0, one.tokens, 20, 20, one.sampling, 1)
        futures.append(drafter.propose(named, DraftShape(8)))
    rounds = [future.result(timeout=60) for future in futures]
    steps = drafter._verifier.stats().num_steps
    drafter.shutdown()
    assert {tuple(draft.tokens.tolist()) for draft in rounds} == {tuple(rounds[0].tokens.tolist())}
    assert steps < 24  # two or three passes per sequence, were they alone: 48 or more



"""The promise with an `eagle` head: a real target, its features, a head that guesses well, and one that does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from actors.drafters.cascade import CascadeDrafter
from actors.drafters.copies import Copies
from actors.drafters.model import ModelDrafter
from actors.engine.engine import Engine
from actors.engine.headed import EagleRunner
from actors.engine.make import make_runner
from actors.heads.eagle import EagleHead
from actors.inline import InlineVerifier
from actors.messages import Context, Draft, DraftShape, Ids, ReplicaInfo, Verdict
from actors.sampling.params import SamplingParams
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import GenerationRequest
from cluster.coordinator.settings import CoordinatorSettings, OverlapSettings
from cluster.coordinator.tier import NO_TOKENS, DraftHandle, Lease
from tests.eagle_head import SEEDS, trained_head
from tests.laws import Told, of_real_texts
from tests.local_tier import LocalLease, LocalTier, verifier
from tests.models import VOCAB, tiny_model, tiny_spec
from tests.unit.heads.fresh import fresh_head
from tests.unit.test_exactness import Answer, answer

pytestmark = pytest.mark.exactness

PATIENT = CoordinatorSettings(draft_timeout_s=60)
SEEDED = SamplingParams(temperature=0.9, seed=5, top_k=40)
SHAPES = {
    "chain": DraftShape(5), "comb": DraftShape(4, siblings=1), "static": DraftShape(3, widths=(3, 2, 1)),
    "dynamic": DraftShape(5, num_nodes=12),
}


class Stepping(LocalLease):
    """Steps in one shape instead of verifying."""

    async def _verify(self, context: Context, drafts: tuple[DraftHandle | Draft, ...], want_laws: bool) -> Verdict:
        tier = self._tier
        assert isinstance(tier, Tier)
        assert isinstance(tier.worker, InlineVerifier)
        return await asyncio.wrap_future(tier.worker.step(context, tier.shape))


class Tier(LocalTier):
    """A target with a head inline."""

    def __init__(self, worker: InlineVerifier, shape: DraftShape) -> None:
        super().__init__(worker)  # type: ignore[arg-type]
        self.shape = shape

    async def lease(self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS) -> Lease:
        lease = Stepping(self, sequence_id)
        self.leases.append(lease)
        return lease


class House:
    """A target that drafts for itself with a head, and the same target alone."""

    def __init__(self, head: EagleHead, shape: DraftShape, copies: Copies | None = None, **draft: object) -> None:
        def target(layers: tuple[int, ...]) -> tuple[object, object]:
            spec = tiny_spec(tier=1, kv_tokens=16384, feature_layers=layers)
            return make_runner(tiny_model("llama"), spec), spec

        spec = tiny_spec(**{"tier": 0, "kv_tokens": 16384, **draft})
        info = ReplicaInfo(0, "tiny", VOCAB, 1024, spec.num_pages, spec.page_tokens, "")
        self.drafter = ModelDrafter(Engine(EagleRunner(head, spec), spec, 1024), info, 64, copies)
        self.target = verifier(*target(head.config.feature_layers))  # type: ignore[arg-type]
        self.alone = LocalTier(verifier(*target(())))  # type: ignore[arg-type]
        self.together = Tier(InlineVerifier(self.drafter, self.target), shape)

    def ask(self, tier: LocalTier, *requests: GenerationRequest) -> list[Answer]:
        ladder = Ladder([tier], settings=PATIENT)

        async def all_at_once() -> list[Answer]:
            return list(await asyncio.gather(*(answer(ladder, r) for r in requests)))

        return asyncio.run(all_at_once())

    def close(self) -> None:
        for tier in (self.together, self.alone):
            assert tier.leases == []
        for worker in (self.drafter, self.target, self.alone.worker):
            engine = worker.engine  # type: ignore[union-attr]
            engine.check_integrity()
            assert engine.stats().num_sequences == 0
            assert engine.stats().num_free_pages == engine.stats().num_pages
        self.together.worker.shutdown()
        self.alone.worker.shutdown()


Build = Callable[..., House]


@pytest.fixture
def build() -> Iterator[Build]:
    made: list[House] = []

    def house(
        head: EagleHead, shape: DraftShape = SHAPES["chain"], copies: Copies | None = None, **draft: object
    ) -> House:
        made.append(House(head, shape, copies, **draft))
        return made[-1]

    yield house
    for one in made:
        one.close()


def request(name: str, seed: int, **changes: object) -> GenerationRequest:
    prompt = np.random.default_rng(seed).integers(2, VOCAB, 20).astype(np.int32)
    values: dict[str, object] = {"sampling": SamplingParams(), "max_tokens": 40, "lookahead": 4, **changes}
    return GenerationRequest(request_id=name, prompt_ids=prompt, **values)  # type: ignore[arg-type]


def figures(answers: Sequence[Answer], name: str) -> int:
    return sum(getattr(a.finish.figures, name) for a in answers)


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_and_seeded_ids_are_those_of_the_target_alone(build: Build, shape: str) -> None:
    house = build(trained_head(), SHAPES[shape])
    asked = [request(f"r{i}", s, sampling=SEEDED if i % 2 else SamplingParams()) for i, s in enumerate(SEEDS[:6])]
    plain, mixed = house.ask(house.alone, *asked), house.ask(house.together, *asked)
    assert [a.ids for a in mixed] == [a.ids for a in plain]
    assert figures(mixed[::2], "accepted") > 2 * figures(mixed[::2], "rounds")  # it has learned these texts
    assert figures(mixed[1::2], "accepted") > 0
    (alone,) = house.ask(house.together, asked[3])
    assert alone.ids == mixed[3].ids


def test_all_weights_and_an_untrained_head_change_nothing(build: Build) -> None:
    asked = [request("g", 0), request("s", 7, sampling=SEEDED)]
    plain = None
    for house in (
        build(trained_head(), weights="int8"), build(trained_head(), dtype="bfloat16", weights="bf16"),
        build(trained_head(), kernels="portable"), build(fresh_head()), build(fresh_head(num_layers=2)),
    ):
        plain = plain or house.ask(house.alone, *asked)
        mixed = house.ask(house.together, *asked)
        assert [a.ids for a in mixed] == [a.ids for a in plain]
        assert figures(mixed, "drafted") > 0


@pytest.mark.parametrize("shape", ["chain", "dynamic"])
def test_copies_change_no_ids_and_are_of_use(build: Build, shape: str) -> None:
    """A head without training, and a text that goes in circles."""
    house, without = (build(fresh_head(), SHAPES[shape], copies) for copies in (Copies(), None))
    asked = [request(f"r{i}", s, sampling=SEEDED if i % 2 else SamplingParams()) for i, s in enumerate(SEEDS[:2])]
    asked.append(request("long", 0, max_tokens=100))
    plain, mixed = house.ask(house.alone, *asked), house.ask(house.together, *asked)
    assert [a.ids for a in mixed] == [a.ids for a in plain]
    assert figures(mixed, "accepted") > figures(without.ask(without.together, *asked), "accepted")
    counters = house.drafter.stats().extra
    assert 0 < counters["num_copies_right"] <= counters["num_copies_found"]


def test_little_memory_and_little_room_change_nothing(build: Build) -> None:
    """Pages are taken from the head's sequences, so features go missing again and again."""
    house = build(trained_head(), kv_tokens=192, page_tokens=16, max_batch_tokens=32)
    asked = [request(f"r{i}", s) for i, s in enumerate(SEEDS[:5])]
    mixed = house.ask(house.together, *asked)
    assert [a.ids for a in mixed] == [a.ids for a in house.ask(house.alone, *asked)]
    assert figures(mixed, "accepted") > 0
    assert house.drafter.stats().extra["num_preemptions"] > 0


@pytest.mark.parametrize(("ahead", "copies"), [(False, None), (True, None), (True, Copies())])
def test_ids_do_not_depend_on_a_head_in_a_pool_of_its_own(build: Build, ahead: bool, copies: Copies | None) -> None:
    """With overlap it drafts on from its own states while the target checks them."""
    house = build(trained_head(), copies=copies)
    overlap = OverlapSettings(num_branches=6, num_guesses=2, num_tokens=4) if ahead else None
    pools = [LocalTier(house.drafter), LocalTier(house.target)]
    ladder = Ladder(pools, settings=replace(PATIENT, overlap=overlap), sends_features=True)
    asked = [request(f"p{i}", s, sampling=SEEDED if i % 2 else SamplingParams()) for i, s in enumerate(SEEDS[:4])]

    async def all_at_once() -> list[Answer]:
        return list(await asyncio.gather(*(answer(ladder, r) for r in asked)))

    mixed = asyncio.run(all_at_once())
    assert [a.ids for a in mixed] == [a.ids for a in house.ask(house.alone, *asked)]
    assert figures(mixed[::2], "accepted") > figures(mixed[::2], "rounds")
    assert all(pool.leases == [] for pool in pools)
    if ahead:
        assert sum(sum(a.finish.figures.ahead.values()) for a in mixed) > 0


def test_a_cascade_over_a_head_drafts_as_its_own_model_in_few_passes(build: Build) -> None:
    house = build(trained_head())
    cascade = CascadeDrafter(house.drafter, house.target, window=4)
    asked = request("a", SEEDS[0])
    told = Context("a", 0, asked.prompt_ids, 20, 20, SamplingParams(), 1)
    draft = cascade.propose(told, DraftShape(24)).result(timeout=60)
    assert draft.tokens.tolist() == house.ask(house.alone, asked)[0].ids[:24]
    assert house.target.stats().num_steps < 12
    cascade.close("a")


@pytest.mark.parametrize(("shape", "copies"), [*((shape, None) for shape in SHAPES), ("comb", Copies())])
def test_sampled_texts_have_the_law_of_the_target(build: Build, shape: str, copies: Copies | None) -> None:
    """So have the drafts that the head made, by the laws that came with them."""
    house = build(trained_head(), SHAPES[shape], copies)
    told = Told(house.drafter)
    asked = [request(f"r{i}", 0, sampling=_sampling(i), max_tokens=24) for i in range(64)]
    answers = house.ask(house.together, *asked)
    texts = [a.ids for a in answers]
    assert figures(answers, "accepted") > 200
    evidence = of_real_texts(tiny_model("llama"), [a.prompt_ids for a in asked], texts, _sampling(0))
    assert evidence.p_value > 1e-5, evidence.p_values()
    drafted = told.evidence(VOCAB)
    assert len(drafted) > 1000
    assert drafted.p_value > 1e-5, drafted.p_values()


def _sampling(entropy: int) -> SamplingParams:
    return SamplingParams(temperature=0.9, top_k=4, entropy=entropy, block_verification=entropy % 2 == 0)

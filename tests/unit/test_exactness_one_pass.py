"""The promise with `medusa` and `block`: a real target, its features, heads that guess well, the real coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actors.drafters.block import block_drafter
from actors.drafters.medusa import medusa_drafter
from actors.engine.make import make_runner
from actors.heads.medusa import MedusaHeads
from actors.inline import InlineVerifier
from actors.messages import DraftShape, ReplicaInfo
from actors.sampling.params import SamplingParams
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import GenerationRequest
from cluster.coordinator.settings import OverlapSettings, TreeSettings
from tests.eagle_head import SEEDS
from tests.laws import Told, of_real_texts
from tests.local_tier import LocalTier, verifier
from tests.models import VOCAB, tiny_model, tiny_spec
from tests.one_pass_heads import losses, trained
from tests.unit.test_exactness import Answer, answer
from tests.unit.test_exactness_eagle import PATIENT, SEEDED, SHAPES, Tier, _sampling, figures, request

pytestmark = pytest.mark.exactness

KIND = pytest.mark.parametrize("kind", ["medusa", "block"])


class House:
    """A target that drafts for itself with a head, and the same target alone."""

    def __init__(self, kind: str, shape: DraftShape, **draft: object) -> None:
        head = trained(kind)
        spec = tiny_spec(**{"tier": 0, "kv_tokens": 16384, **draft})
        info = ReplicaInfo(0, "tiny", VOCAB, 1024, spec.num_pages, spec.page_tokens, "")
        make: Any = medusa_drafter if isinstance(head, MedusaHeads) else block_drafter
        self.drafter = make(head, spec, info, 64)
        self.target = self._target(head.config.feature_layers)
        self.alone = LocalTier(self._target(()))
        self.together = Tier(InlineVerifier(self.drafter, self.target), shape)

    def _target(self, layers: tuple[int, ...]) -> Any:
        spec = tiny_spec(tier=1, kv_tokens=16384, feature_layers=layers)
        return verifier(make_runner(tiny_model("llama"), spec), spec)

    def ask(self, tier: LocalTier, *requests: GenerationRequest) -> list[Answer]:
        return self.ask_of(Ladder([tier], settings=PATIENT), *requests)

    def ask_of(self, ladder: Ladder, *requests: GenerationRequest) -> list[Answer]:
        async def all_at_once() -> list[Answer]:
            return list(await asyncio.gather(*(answer(ladder, r) for r in requests)))

        return asyncio.run(all_at_once())

    def close(self) -> None:
        assert self.together.leases == []
        self.together.worker.shutdown()
        self.alone.worker.shutdown()
        assert self.drafter.stats().num_sequences == 0


Build = Callable[..., House]


@pytest.fixture
def build() -> Iterator[Build]:
    made: list[House] = []

    def house(kind: str, shape: DraftShape = SHAPES["chain"], **draft: object) -> House:
        made.append(House(kind, shape, **draft))
        return made[-1]

    yield house
    for one in made:
        one.close()


@KIND
def test_training_makes_them_better(kind: str) -> None:
    assert np.mean(losses(kind)[-5:]) < 0.7 * losses(kind)[0]


@KIND
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_and_seeded_ids_are_those_of_the_target_alone(build: Build, kind: str, shape: str) -> None:
    house = build(kind, SHAPES[shape])
    asked = [request(f"r{i}", s, sampling=SEEDED if i % 2 else SamplingParams()) for i, s in enumerate(SEEDS[:6])]
    plain, mixed = house.ask(house.alone, *asked), house.ask(house.together, *asked)
    assert [a.ids for a in mixed] == [a.ids for a in plain]
    assert figures(mixed[::2], "accepted") > figures(mixed[::2], "rounds")  # it has learned these texts
    assert figures(mixed[1::2], "accepted") > 0


@KIND
@pytest.mark.parametrize("weights", ["w8a8", "int4"])
def test_weights_change_nothing(build: Build, kind: str, weights: str) -> None:
    house = build(kind, weights=weights)
    asked = [request("g", 0), request("s", 7, sampling=SEEDED)]
    mixed = house.ask(house.together, *asked)
    assert [a.ids for a in mixed] == [a.ids for a in house.ask(house.alone, *asked)]
    assert figures(mixed, "accepted") > 0


@KIND
@pytest.mark.parametrize(
    ("tree", "ahead"), [(None, False), (None, True), (TreeSettings(widths=(2, 2, 1)), True)],
    ids=["chains", "chains ahead", "trees ahead"],
)
def test_a_pool_of_its_own_changes_nothing(build: Build, kind: str, tree: TreeSettings | None, ahead: bool) -> None:
    house = build(kind)
    apart = [LocalTier(house.drafter), LocalTier(house.target)]
    overlap = OverlapSettings(num_branches=6, num_guesses=2, num_tokens=2) if ahead else None
    ladder = Ladder(
        apart, settings=replace(PATIENT, tree=tree, overlap=overlap), sends_features=True,
        feature_window=house.drafter.feature_window,
    )
    asked = [
        request(f"r{i}", s, sampling=SEEDED if i % 2 else SamplingParams(), lookahead=2)
        for i, s in enumerate(SEEDS[:4])
    ]
    mixed = house.ask_of(ladder, *asked)
    assert [a.ids for a in mixed] == [a.ids for a in house.ask(house.alone, *asked)]
    assert figures(mixed, "accepted") > figures(mixed, "rounds") / 3
    assert sum(sum(a.finish.figures.degraded.values()) for a in mixed) == 0


def test_little_memory_changes_nothing(build: Build) -> None:
    """There is room for the features of two of five texts."""
    house = build("block", kv_tokens=256)
    asked = [request(f"r{i}", s) for i, s in enumerate(SEEDS[:5])]
    mixed = house.ask(house.together, *asked)
    assert [a.ids for a in mixed] == [a.ids for a in house.ask(house.alone, *asked)]
    assert figures(mixed, "accepted") > 0


@pytest.mark.parametrize(("kind", "shape"), [("medusa", "static"), ("block", "chain"), ("block", "dynamic")])
def test_sampled_texts_have_the_law_of_the_target(build: Build, kind: str, shape: str) -> None:
    """So have the drafts that the head made, by the laws that came with them."""
    house = build(kind, SHAPES[shape])
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

"""Two draft and two target replicas on a real Ray: later turns find their prefix, busy replicas are passed over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ray import serve

from actors.messages import Ids
from actors.sampling.params import SamplingParams
from cluster.app import pool_options, pool_settings
from cluster.config import load_config
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, GenerationRequest
from cluster.coordinator.settings import CoordinatorSettings
from cluster.coordinator.tier import NO_TOKENS
from cluster.leases import RayLease
from cluster.pools import Pool
from cluster.prefixes import LocalPrefixes, PrefixDirectory, SharedPrefixes
from cluster.tiers import RayTier
from tests.conftest import TinyModel
from tests.ray.serving import end_serve

pytestmark = [pytest.mark.ray, pytest.mark.asyncio]

PAGE = 16
PLACES = 4  # of a replica
rng = np.random.default_rng(0)


class SpiedTier(RayTier):
    """Remembers which replica each sequence was given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.given: dict[str, str] = {}

    async def lease(
        self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS
    ) -> RayLease:
        lease = await super().lease(sequence_id, avoid, tokens)
        self.given[sequence_id] = lease.replica_id
        return lease


@pytest.fixture(scope="module")
def handles(ray_env: None, tiny_model: TinyModel) -> Iterator[list[Any]]:
    small = {
        "kv_tokens": 2048, "page_tokens": PAGE, "max_sequences": PLACES, "num_threads": 1,
        "resources": {"num_cpus": 0.1}, "replicas": {"min": 2, "max": 2},
    }
    config = load_config({
        "tiers": [
            {"name": "draft", "model": str(tiny_model(seed=1)), **small},
            {"name": "target", "model": str(tiny_model(seed=0)), **small},
        ],
    })
    deployment: Any = serve.deployment(Pool)
    pools = [
        deployment.options(**pool_options(config, index)).bind(pool_settings(config, index)) for index in range(2)
    ]
    yield [serve.run(pool, name=f"routing-{index}", route_prefix=None) for index, pool in enumerate(pools)]
    end_serve()


@pytest.fixture
def tiers(handles: list[Any]) -> list[SpiedTier]:
    """A coordinator that has seen nothing yet."""
    prefixes = LocalPrefixes()
    return [SpiedTier(handle, 60.0, prefixes=prefixes) for handle in handles]


def ladder(tiers: list[SpiedTier]) -> Ladder:
    return Ladder(tiers, (), CoordinatorSettings(draft_timeout_s=60.0, lease_grace_s=60.0))


async def ask(
    tiers: list[SpiedTier], sequence_id: str, prompt: Ids, max_tokens: int = 24, lookahead: int = 4
) -> tuple[Ids, Finish]:
    """The whole conversation so far, and the finish."""
    request = GenerationRequest(sequence_id, prompt, SamplingParams(), max_tokens, lookahead=lookahead)
    ids = [prompt]
    async for item in generate(request, ladder(tiers)):
        if isinstance(item, Finish):
            return np.concatenate(ids), item
        ids.append(item.token_ids)
    raise AssertionError("the stream ended without a finish")


def words(num_tokens: int) -> Ids:
    return rng.integers(4, 260, num_tokens).astype(np.int32)


def whole_pages(num_tokens: int) -> int:
    return num_tokens // PAGE * PAGE


async def test_each_later_turn_goes_where_the_conversation_was_and_finds_it(tiers: list[SpiedTier]) -> None:
    """Six at once, so that both replicas of each pool have some."""
    first = await asyncio.gather(*(ask(tiers, f"a{i}", words(100)) for i in range(6)))
    prompts = [np.concatenate([ids, words(20)]) for ids, _ in first]
    second = [await ask(tiers, f"b{i}", prompt) for i, prompt in enumerate(prompts)]
    alone = [await ask(tiers, f"c{i}", prompt, lookahead=0) for i, prompt in enumerate(prompts)]
    for tier in tiers:
        assert len({tier.given[f"a{i}"] for i in range(6)}) == 2
        assert [tier.given[f"b{i}"] for i in range(6)] == [tier.given[f"a{i}"] for i in range(6)]
    for (before, _), (ids, finish), (truth, _) in zip(first, second, alone, strict=True):
        assert ids.tolist() == truth.tolist()
        # All that the target had decided when its last round began; the draft pool may lack one round more.
        held = whole_pages(len(before) - 5)
        assert finish.figures.cached_by_tier[1] >= held
        assert finish.figures.cached_by_tier[0] >= whole_pages(len(before) - 10)


async def test_a_shared_beginning_does_not_crowd_one_replica(tiers: list[SpiedTier]) -> None:
    """What is known is worth half the places of a replica, not all of them."""
    system = words(64)
    await ask(tiers, "first", np.concatenate([system, words(4)]))
    leases = [await tiers[1].lease(f"s{i}", tokens=np.concatenate([system, words(4)])) for i in range(2 * PLACES)]
    counts = [list(tiers[1].given.values())[: 1 + n].count(tiers[1].given["first"]) for n in (1, 2, 2 * PLACES)]
    for lease in leases:
        await lease.release()
    assert counts[0] == 2  # the second one follows the first
    assert counts[2] == 1 + PLACES  # and in the end both are full


async def test_a_replica_that_is_full_or_gone_costs_a_miss_and_nothing_else(tiers: list[SpiedTier]) -> None:
    ids, _ = await ask(tiers, "a", words(100))
    home = tiers[1].given["a"]
    prompt = np.concatenate([ids, words(10)])
    filling = [await tiers[1].lease(f"fill{i}") for i in range(2 * PLACES)]
    for lease in filling:
        if lease.replica_id != home:
            await lease.release()
    away, _ = await ask(tiers, "b", prompt)
    assert tiers[1].given["b"] != home
    for lease in filling:
        await lease.release()
    again, finish = await ask(tiers, "c", prompt)
    assert away.tolist() == again.tolist()
    avoiding = await tiers[1].lease("d", frozenset({tiers[1].given["c"]}), prompt)
    assert avoiding.replica_id != tiers[1].given["c"]
    await avoiding.release()
    assert finish.figures.cached_by_tier[1] > 0


async def test_coordinators_share_what_they_learn(handles: list[Any]) -> None:
    deployment: Any = serve.deployment(PrefixDirectory)
    directory = serve.run(
        deployment.options(name="prefixes", ray_actor_options={"num_cpus": 0}).bind(), name="directory",
        route_prefix=None,
    )
    one = [SpiedTier(handle, 60.0, prefixes=SharedPrefixes(directory)) for handle in handles]
    other = [SpiedTier(handle, 60.0, prefixes=SharedPrefixes(directory)) for handle in handles]
    for turn in range(4):
        ids, _ = await ask(one, f"a{turn}", words(100))
        await asyncio.sleep(1.0)  # told in the background
        _, finish = await ask(other, f"b{turn}", np.concatenate([ids, words(10)]))
        assert other[1].given[f"b{turn}"] == one[1].given[f"a{turn}"]
        assert finish.figures.cached_by_tier[1] >= whole_pages(len(ids) - 5)

"""Features of the target reach a drafter in another pool: the right ones, once, whatever dies on the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from actors.messages import Context, Draft, DraftShape, Features, Ids, Origin, Verdict
from cluster.coordinator.courier import Courier
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish
from cluster.coordinator.tier import NO_TOKENS, DraftHandle
from tests.unit.coordinator.fakes import (
    FAST,
    PROMPT,
    TRUTH,
    FakeHandle,
    FakeLease,
    FakeTier,
    Faults,
    agreeing,
    alone,
    hashed,
    make_request,
    no_faults,
    target_model,
)

PATIENT = replace(FAST, max_target_moves=6)


def features(start: int, end: int) -> Features:
    """Of the truth: each row tells of all tokens up to its position."""
    values = [[hashed(TRUTH[: position + 1]) % 2048] for position in range(start, end)]
    return Features(start, np.array(values, np.float16).reshape(-1, 1))


@dataclass
class FeatureTier(FakeTier):
    window: int = 0  # positions that the drafter needs; 0: all

    async def lease(
        self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS
    ) -> FakeLease:
        given = await super().lease(sequence_id, avoid, tokens)
        return FeatureLease(self, given.replica_id)


@dataclass
class FeatureLease(FakeLease):
    """Of either tier: a drafter that keeps what it was sent, a target that answers what it was asked for."""

    num_features: int = 0

    @property
    def window(self) -> int:
        """Positions that the drafter needs; 0: all."""
        assert isinstance(self.tier, FeatureTier)
        return self.tier.window

    def propose(self, context: Context, shape: DraftShape) -> FakeHandle:
        if self.held is None:
            self.num_features = 0
        needed = max(0, context.num_tokens - 1 - self.window) if self.window else 0
        if self.num_features < needed:
            self.num_features = needed  # what lies before is of no use
        handle = super().propose(context, shape)
        if not handle.outcome.done() or handle.outcome.exception() or not len(handle.outcome.result().tokens):
            return handle
        found = context.features
        if found is not None and found.start <= self.num_features:
            self._require(bool((found.rows == features(found.start, found.end).rows).all()), "wrong features came")
            self._require(not self.window or len(found.rows) <= self.window + 1, "more features came than are needed")
            self.num_features = max(self.num_features, found.end)
        if self.num_features < context.num_tokens - 1:
            outcome: asyncio.Future[Draft] = asyncio.get_running_loop().create_future()
            outcome.set_result(Draft(NO_TOKENS, features_missing=self.num_features))
            return FakeHandle(outcome)
        return handle

    def verify(self, context: Context, *drafts: DraftHandle | Draft, want_laws: bool) -> Awaitable[Verdict]:
        return self._answer(context, drafts)

    async def _answer(self, context: Context, drafts: tuple[DraftHandle | Draft, ...]) -> Verdict:
        verdict = await self._verify(context, drafts)
        if context.features_from < 0 or not len(verdict.tokens):
            return verdict
        return replace(verdict, features=features(context.features_from, context.num_tokens + verdict.num_accepted))


def tiers_of(percent: int, faults: Faults = no_faults, window: int = 0) -> list[FakeTier]:
    return [
        FeatureTier(0, agreeing(percent), faults, window=window), FeatureTier(1, target_model, faults, window=window)
    ]


def run(tiers: list[FakeTier], max_tokens: int) -> tuple[list[int], Finish]:
    async def go() -> tuple[list[int], Finish]:
        ids: list[int] = []
        assert isinstance(tiers[0], FeatureTier)
        ladder = Ladder(tiers, (), PATIENT, sends_features=True, feature_window=tiers[0].window)
        async for item in generate(make_request(max_tokens), ladder):
            if isinstance(item, Finish):
                return ids, item
            ids += item.token_ids.tolist()
        raise AssertionError("no finish")

    return asyncio.run(go())


def test_every_round_but_the_first_drafts_from_features_of_all_that_was_decided() -> None:
    tiers = tiers_of(70)
    ids, finish = run(tiers, 60)
    assert ids == alone(60)
    drafter, target = tiers
    assert [tier.violations for tier in tiers] == [[], []]
    sent = [context.features for context in drafter.contexts]
    assert len(sent) in (finish.figures.rounds - 1, finish.figures.rounds - 2)  # the last may want one token
    assert [f.start for f in sent if f] == [0, *(f.end for f in sent[:-1] if f)]  # each position travels once
    assert target.contexts[0].features_from == 0
    assert finish.figures.accepted > 20
    assert not finish.figures.degraded


@pytest.mark.parametrize("window", [1, 2, 7])
def test_who_needs_few_positions_is_sent_no_others(window: int) -> None:
    """However long the prompt is."""
    tiers = tiers_of(70, window=window)
    ids, finish = run(tiers, 60)
    assert ids == alone(60)
    drafter, target = tiers
    assert [tier.violations for tier in tiers] == [[], []]
    assert target.contexts[0].features_from == max(0, len(PROMPT) - window)
    asked = [context.num_tokens - context.features_from for context in target.contexts]
    assert max(asked) <= window
    assert len(drafter.contexts) in (finish.figures.rounds - 1, finish.figures.rounds - 2)
    assert finish.figures.accepted > 20
    assert not finish.figures.degraded


@pytest.mark.parametrize("seed", range(60))
def test_whatever_dies_or_forgets_the_text_stays_and_drafting_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    kinds = {
        "propose": ("forget", "stall", "die", "lost", "error", "empty", "revoke", "raise"),
        "verify": ("forget", "die", "die_after", "revoke"), "lease": ("none",),
    }
    left = 6

    def faults(kind: str) -> str | None:
        nonlocal left
        if left and kind in kinds and rng.random() < 0.12:
            left -= 1
            return rng.choice(kinds[kind])
        return None

    tiers = tiers_of(80, faults, seed % 3)
    ids, finish = run(tiers, 90)
    assert ids == alone(90)
    assert [tier.violations for tier in tiers] == [[], []]
    assert finish.figures.accepted > 10


def test_features_that_do_not_follow_on_those_at_hand_take_their_place() -> None:
    courier = Courier()
    context = Context("s", 0, np.array([*PROMPT, 1], np.int32), 3, 4, make_request().sampling, 1)
    verdict = Verdict(np.array([1], np.int32), 0, 0, Origin.PLAIN)
    assert courier.load(context, knows_sequence=False) is None
    courier.collect(replace(verdict, features=features(0, 3)))
    loaded = courier.load(context, knows_sequence=False)
    assert loaded is not None
    assert loaded.features is not None
    assert loaded.features.end == 3
    assert courier.asks(context).features_from == 3
    courier.delivered()
    courier.refused(Draft(NO_TOKENS, features_missing=1))
    assert courier.load(context, knows_sequence=True) is None
    assert courier.asks(context).features_from == 1
    courier.collect(replace(verdict, features=features(1, 3)))
    assert courier.load(context, knows_sequence=True) is not None
    assert courier.load(context, knows_sequence=False) is None  # a new replica wants all of them
    assert courier.asks(context).features_from == 0

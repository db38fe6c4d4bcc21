"""The actor's side of an enumeration: what comes over the wire is answered in kind, whatever happens."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import numpy as np
import pytest

from actors.draft import DraftActor
from actors.drafter_specs import DrafterSpec, NgramSpec
from actors.drafters.base import Drafter
from actors.drafters.ngram import NgramDrafter
from actors.messages import AheadPlan, Context, Draft, DraftShape, Enumeration, Ids, ReplicaStats
from actors.spec import ModelSpec
from actors.wire.codec import decode_draft, decode_enumeration, encode, encode_ahead, encode_propose
from actors.wire.frames import Kind
from cluster.channel import Channel
from tests.unit.drafters.conftest import context

PLAN = AheadPlan(DraftShape(3), 4, 2, 100, 1.0)
TEXT = np.array([1, 2, 3, 4, 5, 6, 7, 8, 1, 2], np.int32)


class Silent(Drafter):
    """Knows nothing."""

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """As one whose memory was closed."""
        raise LookupError("knows nothing")

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Holds nothing."""

    def stats(self) -> ReplicaStats:
        """Nothing."""
        return ReplicaStats(0, 0, 0, 0, 0, 0)

    def shutdown(self) -> None:
        """Nothing runs."""


class Broken(Silent):
    """Fails at everything."""

    def enumerate(
        self, context: Context, draft: Draft, verify_round: int, plan: AheadPlan
    ) -> Future[Enumeration]:
        """As a bug would."""
        raise RuntimeError("broken")


def make_ngram(model: ModelSpec, drafter: DrafterSpec) -> Drafter:
    return NgramDrafter(drafter)


def make_silent(model: ModelSpec, drafter: DrafterSpec) -> Drafter:
    return Silent()


def make_broken(model: ModelSpec, drafter: DrafterSpec) -> Drafter:
    return Broken()


def ask(factory: str, draft: Draft, plan: AheadPlan = PLAN) -> Enumeration:
    async def call() -> Enumeration:
        actor = DraftActor(ModelSpec(0, "x"), NgramSpec(), f"{__name__}:{factory}")
        asked = context(TEXT, 2)
        await actor.attend(asked.sequence_id, "lease")
        payload = encode_ahead(asked, encode(draft), 1, plan)
        return decode_enumeration(encode(actor._enumerate(payload).future.result()))

    return asyncio.run(call())


def test_a_copying_drafter_goes_on_after_the_whole_draft() -> None:
    found = ask("make_ngram", Draft(np.array([3, 4], np.int32)))
    assert found.round == 1
    assert [(b.node, b.token, b.draft.tokens.tolist()) for b in found.branches] == [(1, 5, [6, 7, 8])]


@pytest.mark.parametrize(("total", "length"), [(len(TEXT) + 6, 2), (len(TEXT) + 4, 0)])
def test_a_copied_branch_ends_where_the_plan_does(total: int, length: int) -> None:
    found = ask("make_ngram", Draft(np.array([3, 4], np.int32)), AheadPlan(DraftShape(3), 4, 2, total, 1.0))
    assert [len(b.draft.tokens) for b in found.branches] == ([length] if length else [])
    assert found.error is None


def test_a_drafter_that_cannot_draft_ahead_says_why() -> None:
    found = ask("make_silent", Draft(np.array([3], np.int32)))
    assert (found.round, found.error) == (1, "LookupError: knows nothing")


def test_a_drafter_that_breaks_costs_no_more_than_its_branches() -> None:
    found = ask("make_broken", Draft(np.array([3], np.int32)))
    assert (found.round, found.error, found.branches) == (1, "RuntimeError: broken", ())


def test_a_call_that_comes_after_its_lease_has_ended_opens_nothing() -> None:
    async def body() -> None:
        actor = DraftActor(ModelSpec(0, "x"), NgramSpec(), f"{__name__}:make_ngram")
        channel = await Channel.connect(await actor._server.listen("127.0.0.1"))
        asked = context(TEXT, 2)

        async def drafted() -> Draft:
            return decode_draft(await channel.call(Kind.PROPOSE, encode_propose(asked, DraftShape(2))))

        await actor.attend(asked.sequence_id, "first")
        assert len((await drafted()).tokens) == 2
        await actor.close(asked.sequence_id, "another")
        assert len((await drafted()).tokens) == 2
        await actor.close(asked.sequence_id, "first")
        late = await drafted()
        assert (len(late.tokens), late.prefix_missing) == (0, True)
        assert (await actor.stats()).num_sequences == 0
        channel.close()

    asyncio.run(body())

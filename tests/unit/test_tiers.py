"""A search for a lease asks others before it waits, waits no longer than it may, and says why it failed."""

from __future__ import annotations

from typing import Any

import pytest

from actors.wire.access import Endpoint, new_secret
from cluster.coordinator.tier import NoReplica, PoolFull
from cluster.pools import LeaseGrant, Refused
from cluster.routing import Preference
from cluster.tiers import RayTier
from tests.unit.lease_doubles import INFO, Answer, Handle, serving


def full(tag: str) -> Refused:
    return Refused(f"{tag} is full", tag, full=True)


def test_others_are_asked_at_once_when_one_refuses() -> None:
    async def body(endpoint: Endpoint) -> None:
        def answer(preference: Preference) -> Answer:
            for tag in "abcdefghij":
                if tag not in preference.avoid:
                    return full(tag) if tag < "j" else LeaseGrant("j#1", endpoint, INFO)
            raise AssertionError("all were refused")

        handle: Any = Handle(answer)
        lease = await RayTier(handle, 60.0).lease("s", frozenset({"b#7"}))
        assert lease.replica_id == "j#1"
        assert handle.preferences[0].avoid == {"b"}
        assert handle.preferences[-1].avoid == set("abcdefghi")  # a pause would have forgotten who refused

    serving(body)


def test_a_full_pool_is_given_up_in_time_and_says_so() -> None:
    async def body(endpoint: Endpoint) -> None:
        handle: Any = Handle(lambda preference: full("a"))
        with pytest.raises(PoolFull, match="a is full"):
            await RayTier(handle, 3600.0, full_timeout_s=0.2).lease("s")
        assert len(handle.preferences) < 20  # with pauses that grow

    serving(body)


def test_a_place_that_becomes_free_is_taken() -> None:
    async def body(endpoint: Endpoint) -> None:
        answers = iter([full("a"), full("a"), full("a")])
        handle: Any = Handle(lambda preference: next(answers, LeaseGrant("a#1", endpoint, INFO)))
        assert (await RayTier(handle, 60.0).lease("s")).replica_id == "a#1"

    serving(body)


def test_a_pool_that_is_being_rebuilt_is_not_full() -> None:
    async def body(endpoint: Endpoint) -> None:
        def answer(preference: Preference) -> Answer:
            return Refused("b is being rebuilt", "b") if "a" in preference.avoid else full("a")

        handle: Any = Handle(answer)
        with pytest.raises(NoReplica, match=r"within 0\.5 s") as failed:
            await RayTier(handle, 0.5, full_timeout_s=0.1).lease("s")
        assert not isinstance(failed.value, PoolFull)

    serving(body)


def test_an_avoided_replica_is_taken_when_nothing_else_comes_up() -> None:
    async def body(endpoint: Endpoint) -> None:
        handle: Any = Handle(lambda preference: LeaseGrant("a#1", endpoint, INFO))
        lease = await RayTier(handle, 60.0).lease("s", frozenset({"a#1"}))
        assert lease.replica_id == "a#1"
        assert len(handle.preferences) > 1
        other_generation = await RayTier(handle, 60.0).lease("s", frozenset({"a#0"}))
        assert other_generation.replica_id == "a#1"

    serving(body)


def test_an_actor_that_cannot_be_reached_is_named() -> None:
    async def body(endpoint: Endpoint) -> None:
        nowhere = Endpoint("127.0.0.1", 1, new_secret())
        handle: Any = Handle(lambda preference: LeaseGrant("a#1", nowhere, INFO))
        with pytest.raises(NoReplica, match="127.0.0.1:1 does not answer"):
            await RayTier(handle, 0.2).lease("s")

    serving(body)


def test_a_replica_out_of_reach_is_asked_last_by_the_next_sequence_too() -> None:
    async def body(endpoint: Endpoint) -> None:
        nowhere = Endpoint("127.0.0.1", 1, new_secret())

        def answer(preference: Preference) -> Answer:
            if "a" in preference.avoid:
                return LeaseGrant("b#1", endpoint, INFO)
            return LeaseGrant("a#1", nowhere, INFO)

        handle: Any = Handle(answer)
        tier = RayTier(handle, 60.0)
        assert [(await tier.lease(name)).replica_id for name in "st"] == ["b#1", "b#1"]
        assert [preference.avoid for preference in handle.preferences] == [set(), {"a"}, {"a"}]

    serving(body)

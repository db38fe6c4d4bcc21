"""A memory of prefixes finds the longest one, is bounded, and is never needed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray.exceptions import RayError

from cluster.prefixes import BLOCK_TOKENS, SILENCE_S, LocalPrefixes, PrefixIndex, SharedPrefixes, digests

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def text(*blocks: int, rest: int = 0) -> np.ndarray:
    """One whole block of tokens per number, then some more tokens."""
    return np.concatenate([*(np.full(BLOCK_TOKENS, block, np.int32) for block in blocks), np.zeros(rest, np.int32)])


@relaxed
@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6), st.integers(0, 31))
def test_names_are_equal_exactly_as_far_as_the_texts_are(one: list[int], other: list[int], rest: int) -> None:
    common = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    first, second = digests(text(*one, rest=rest)), digests(text(*other))
    assert (len(first), len(second)) == (len(one), len(other))
    assert first[:common] == second[:common]
    assert not set(first[common:]) & set(second[common:])


def test_each_replica_is_worth_the_longest_prefix_it_met() -> None:
    index = PrefixIndex()
    index.learn(digests(text(1, 2)), "a")
    index.learn(digests(text(1, 2, 3, 4)), "b")
    index.learn(digests(text(1, 9, 9, 9)), "c")
    assert index.shares(digests(text(1, 2, 3, 5))) == {"a": 0.5, "b": 0.75, "c": 0.25}
    assert index.shares(digests(text(7, 2, 3, 4))) == {}
    assert index.shares([]) == {}


def test_the_second_turn_finds_the_replica_of_the_first() -> None:
    index = PrefixIndex()
    index.learn(digests(text(1, 2, 3, rest=20)), "a")
    assert index.shares(digests(np.concatenate([text(1, 2, 3, rest=20), text(5)])))["a"] == 0.75


def test_the_memory_is_bounded_and_forgets_ends_before_beginnings() -> None:
    index = PrefixIndex(max_blocks=4)
    index.learn(digests(text(1, 2, 3)), "a")
    index.learn(digests(text(8, 9)), "b")
    assert len(index) == 4
    assert index.shares(digests(text(1, 2, 3))) == {"a": 2 / 3}
    for replica in range(100):
        index.learn(digests(text(1)), f"r{replica}")
    assert len(index.shares(digests(text(1)))) <= 8


class Directory:
    """A directory's handle that answers, fails, or hangs."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.mood = "well"
        self.shares: Any = SimpleNamespace(remote=self._shares)
        self.learn: Any = SimpleNamespace(remote=self._learn)

    async def _shares(self, names: list[bytes]) -> dict[str, float]:
        await self._be()
        return self.index.shares(names)

    async def _learn(self, names: list[bytes], replica: str) -> None:
        await self._be()
        self.index.learn(names, replica)

    async def _be(self) -> None:
        if self.mood == "dead":
            raise RayError("dead")
        if self.mood == "hung":
            await asyncio.sleep(3600)


def test_what_one_coordinator_learns_another_knows() -> None:
    async def main() -> None:
        directory: Any = Directory()
        one, other = SharedPrefixes(directory), SharedPrefixes(directory)
        one.learn(digests(text(1, 2)), "a")
        await asyncio.gather(*one._telling)
        assert await other.shares(digests(text(1, 2, 3, 4))) == {"a": 0.5}

    asyncio.run(main())


def test_without_the_directory_each_knows_its_own() -> None:
    async def main() -> None:
        for mood in ("dead", "hung"):
            directory: Any = Directory()
            prefixes = SharedPrefixes(directory)
            directory.mood = mood
            prefixes.learn(digests(text(1)), "a")
            assert await prefixes.shares(digests(text(1))) == {"a": 1.0}

    asyncio.run(main())


def test_a_silent_directory_is_left_alone_for_a_while() -> None:
    async def main() -> None:
        now = 0.0
        directory: Any = Directory()
        prefixes = SharedPrefixes(directory, clock=lambda: now)
        directory.index.learn(digests(text(1)), "a")
        directory.mood = "dead"
        assert await prefixes.shares(digests(text(1))) == {}
        directory.mood = "well"
        assert await prefixes.shares(digests(text(1))) == {}
        now += SILENCE_S
        assert await prefixes.shares(digests(text(1))) == {"a": 1.0}

    asyncio.run(main())


def test_the_only_coordinator_needs_no_directory() -> None:
    prefixes = LocalPrefixes()
    prefixes.learn(digests(text(1)), "a")
    assert asyncio.run(prefixes.shares(digests(text(1)))) == {"a": 1.0}

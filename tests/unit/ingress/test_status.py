"""What watchers are told of the pools: every replica, and no sleeping pool is woken to tell it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.config import load_config
from cluster.ingress import status
from cluster.ingress.status import PoolsStatus
from cluster.pools import PoolReport
from cluster.routing import Preference


class Pool:
    """A handle to replicas, of which a call meets one that it need not avoid."""

    def __init__(self, *tags: str) -> None:
        self.tags = tags
        self.num_asked = 0
        self.report = SimpleNamespace(remote=self._report)

    async def _report(self, preference: Preference) -> tuple[str, PoolReport]:
        self.num_asked += 1
        tag = next((each for each in self.tags if each not in preference.avoid), self.tags[0])
        return tag, PoolReport(tag, len(tag), 8, STATS)


STATS: Any = SimpleNamespace(num_free_pages=10, num_cached_pages=3, num_pages=16, num_steps=5, num_rows=9)


@pytest.mark.asyncio
async def test_all_replicas_are_told_and_a_sleeping_pool_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    drafts, targets, now = Pool("c", "a", "b"), Pool("t"), [10.0]
    counts = {"tier0-draft": 3, "tier1-target": 1}
    monkeypatch.setattr(status, "_replica_counts", lambda: counts)
    pools: Any = [drafts, targets]
    watched = PoolsStatus(load_config("smollm2"), pools, lambda: {"running": 2}, lambda: now[0])
    told: Any = await watched.read()
    assert [[each["name"] for each in pool["replicas"]] for pool in told["pools"]] == [["a", "b", "c"], ["t"]]
    assert [pool["num_replicas"] for pool in told["pools"]] == [3, 1]
    assert told["pools"][1]["replicas"][0] | {"used_pages": 6, "cached_pages": 3, "max_sequences": 8} == (
        told["pools"][1]["replicas"][0])
    assert told["load"] == {"running": 2}
    asked = drafts.num_asked
    await watched.read()
    assert drafts.num_asked == asked, "however many watch, pools are asked once a second"
    counts["tier0-draft"], now[0] = 0, 12.0
    told = await watched.read()
    assert drafts.num_asked == asked
    assert (told["pools"][0]["num_replicas"], told["pools"][0]["replicas"]) == (0, [])

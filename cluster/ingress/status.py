"""The state of tiers and pools, for people who watch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from cluster.config import Config
from cluster.pools import PoolReport
from cluster.telemetry.scrape import every_replica

logger = logging.getLogger(__name__)

Json = dict[str, object]
FRESH_S = 1.0  # however many watch, the pools are asked no more often


class PoolsStatus:
    """Asks the pools' replicas how they are doing."""

    def __init__(
        self, config: Config, pools: Sequence[DeploymentHandle[Any]], load: Callable[[], Json],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._pools = pools
        self._load = load
        self._clock = clock
        self._lock = asyncio.Lock()
        self._read_s = -FRESH_S
        self._found: Json = {}

    async def read(self) -> Json:
        """Tiers, and the pool of each process: how many replicas run, and those that answered."""
        async with self._lock:
            if self._clock() - self._read_s >= FRESH_S:
                self._found, self._read_s = await self._ask(), self._clock()
        return {**self._found, "load": self._load()}

    async def _ask(self) -> Json:
        config = self._config
        counts = await asyncio.to_thread(_replica_counts)
        names = [f"tier{shared[-1]}-{config.tiers[shared[-1]].name}" for shared in config.processes]
        reports = await asyncio.gather(
            # A pool that sleeps is not asked: a call that waits for a replica would start one.
            *(_reports(pool) if counts.get(name, 1) else _none() for pool, name in zip(self._pools, names, strict=True))
        )
        return {
            "model": config.model_name,
            "tiers": [_tier(config, index) for index in range(len(config.tiers))],
            "pools": [
                {
                    "name": config.tiers[shared[-1]].name, "tiers": list(shared),
                    "num_replicas": counts.get(name, len(found)), "replicas": [_replica(report) for report in found],
                }
                for shared, name, found in zip(config.processes, names, reports, strict=True)
            ],
        }


async def _reports(pool: DeploymentHandle[Any]) -> list[PoolReport]:
    """Of all replicas, by name."""
    found: dict[str, PoolReport] = await every_replica(pool.report.remote)
    return [found[name] for name in sorted(found)]


async def _none() -> list[PoolReport]:
    return []


def _replica_counts() -> dict[str, int]:
    """Running replicas by deployment; nothing when Serve's controller does not answer."""
    try:
        applications = serve.status().applications.values()
    except (RayError, RayServeException) as error:
        logger.warning("the number of replicas is not known: %s", type(error).__name__)
        return {}
    return {
        name: int(deployment.replica_states.get("RUNNING", 0))  # type: ignore[call-overload]  # a string enum
        for application in applications for name, deployment in application.deployments.items()
    }


def _tier(config: Config, index: int) -> Json:
    tier = config.tiers[index]
    kind = tier.drafter.kind if tier.drafter is not None else "model"
    return {
        "name": tier.name, "kind": "target" if index == len(config.tiers) - 1 else kind, "weights": tier.weights,
        "ranks": tier.num_ranks, "emulated": tier.emulation is not None, "inline": tier.inline,
    }


def _replica(report: PoolReport) -> Json:
    stats = report.stats
    free, cached = stats.num_free_pages, stats.num_cached_pages
    return {
        "name": report.replica, "sequences": report.num_leases, "max_sequences": report.max_leases,
        "pages": stats.num_pages, "used_pages": stats.num_pages - free, "cached_pages": min(cached, free),
        "steps": stats.num_steps, "rows": stats.num_rows,
    }

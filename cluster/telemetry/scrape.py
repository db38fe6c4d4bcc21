"""Asks every replica of a pool for its metrics, through a handle that cannot name one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from cluster.routing import Preference
from cluster.telemetry.metrics import Report

logger = logging.getLogger(__name__)

ANSWER_S = 2.0  # of one pool, all replicas together: Prometheus gives up after ten seconds
MOST_REPLICAS = 256


async def pool_reports(pool: DeploymentHandle[Any], *, may_be_empty: bool = False) -> list[Report]:
    """One report per replica that answers in time.

    `may_be_empty`: the pool may have no replica. Then it is not asked: a call that waits for one would start one.
    The pool's router sends a call past the replicas that it is told to avoid as long as there are others, so asking on
    meets each of them once, and then one of them again.
    """
    found: dict[str, Report] = {}
    try:
        async with asyncio.timeout(ANSWER_S):
            if may_be_empty and not await asyncio.to_thread(_num_running, pool.app_name, pool.deployment_name):
                return []
            while len(found) < MOST_REPLICAS:
                tag, report = await pool.metrics.remote(Preference(avoid=frozenset(found)))
                if tag in found:
                    break
                found[tag] = report
    except (RayError, RayServeException, TimeoutError) as error:
        logger.info("not every replica gave its metrics: %s", type(error).__name__)
    return list(found.values())


def _num_running(application: str, deployment: str) -> int:
    """Replicas of a deployment that take calls."""
    found = serve.status().applications.get(application)
    status = None if found is None else found.deployments.get(deployment)
    return 0 if status is None else sum(n for state, n in status.replica_states.items() if state == "RUNNING")

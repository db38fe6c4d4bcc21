"""Asks every replica of a pool how it is doing, through a handle that cannot name one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from cluster.routing import Preference
from cluster.telemetry.metrics import Report

logger = logging.getLogger(__name__)

Told = TypeVar("Told")
ANSWER_S = 2.0  # of one pool, all replicas together: Prometheus gives up after ten seconds
MOST_REPLICAS = 256


async def pool_reports(pool: DeploymentHandle[Any], *, may_be_empty: bool = False) -> list[Report]:
    """The metrics of each replica that answers in time.

    `may_be_empty`: the pool may have no replica. Then it is not asked: a call that waits for one would start one.
    """
    if may_be_empty and not await asyncio.to_thread(_num_running, pool.app_name, pool.deployment_name):
        return []
    return list((await every_replica(pool.metrics.remote)).values())


async def every_replica(ask: Callable[[Preference], Awaitable[tuple[str, Told]]]) -> dict[str, Told]:
    """What each replica that answers in time tells, by tag.

    `ask`: a call of the pool, which answers with the tag of whoever takes it. The pool's router sends a call past the
    replicas that it is told to avoid as long as there are others, so asking on meets each of them once, and then one
    of them again.
    """
    found: dict[str, Told] = {}
    try:
        async with asyncio.timeout(ANSWER_S):
            while len(found) < MOST_REPLICAS:
                tag, told = await ask(Preference(avoid=frozenset(found)))
                if tag in found:
                    break
                found[tag] = told
    except (RayError, RayServeException, TimeoutError) as error:
        logger.info("not every replica answered: %s", type(error).__name__)
    return found


def _num_running(application: str, deployment: str) -> int:
    """Replicas of a deployment that take calls."""
    found = serve.status().applications.get(application)
    status = None if found is None else found.deployments.get(deployment)
    return 0 if status is None else sum(n for state, n in status.replica_states.items() if state == "RUNNING")

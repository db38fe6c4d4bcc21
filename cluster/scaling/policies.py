"""Serve's autoscaling policies of the pools: thin shells over `rules` and `steady`, called in the controller's loop.

They compute and never wait. Serve ships this module by value, each policy with a copy of every object that it names:
what they share is reached through a module (`reports.latest`).
"""

from __future__ import annotations

import abc
import logging
from typing import Any

from ray.serve.config import AutoscalingContext

from cluster.scaling import reports
from cluster.scaling.reports import PoolDemand, num_fresh, read_ingress, total
from cluster.scaling.rules import Limits, Load, wanted_drafts, wanted_targets
from cluster.scaling.steady import Delays, Wishes, settle

logger = logging.getLogger("ray.serve")

Decision = tuple[int, dict[str, Any]]


class IngressPolicy:
    """Keeps the number of ingress replicas, and leaves what they report to the pools' policies."""

    def __call__(self, context: AutoscalingContext) -> Decision:
        """Called about ten times a second."""
        now = context.current_time or 0.0
        reported = read_ingress(context.raw_metrics or {}, now)
        if reported is not None:
            reports.latest.put(context.app_name or "", reported)
        return context.target_num_replicas, {}


class _PoolPolicy(abc.ABC):
    """Wishes from the pool's load; what has lasted becomes the number of replicas."""

    def __init__(self, pool: int, limits: dict[str, Any], delays: dict[str, float]) -> None:
        """`pool`: its place in the ladder; `limits` and `delays` as in `Limits` and `Delays`."""
        self._pool = pool
        self._limits = Limits(**limits)
        self._delays = Delays(**delays)
        self._wishes = Wishes()

    def __call__(self, context: AutoscalingContext) -> Decision:
        """How many replicas there should be; what is not known changes nothing."""
        now, current = context.current_time or 0.0, context.target_num_replicas
        load = self._load(context, now)
        wish = current if load is None else self._wish(load)
        if context.current_num_replicas < current:
            wish = min(wish, current)  # those on their way may be enough
        wish = max(context.capacity_adjusted_min_replicas, min(context.capacity_adjusted_max_replicas, wish))
        delays = self._delays
        self._wishes = self._wishes.heard(now, wish, max(delays.up_s, delays.down_s, delays.zero_s))
        number = settle(self._wishes, now, current, delays)
        if number != current:
            logger.info("%s: %d -> %d replicas for %s", context.deployment_name, current, number, load)
        return number, {}

    @abc.abstractmethod
    def _wish(self, load: Load) -> int:
        """Replicas for this load."""

    @abc.abstractmethod
    def _load(self, context: AutoscalingContext, now: float) -> Load | None:
        """The pool's load; None: not known."""

    def _own(self, context: AutoscalingContext, now: float, demand: PoolDemand, rounds: float) -> Load | None:
        """With what its replicas report."""
        series = context.raw_metrics or {}
        if context.current_num_replicas and not num_fresh(series, "sequences", now):
            return None
        return Load(
            context.target_num_replicas, total(series, "sequences", now), total(series, "kv_used", now),
            demand.waiting, rounds, demand.wanted, demand.starved,
        )


class TargetPolicy(_PoolPolicy):
    """Targets: sequences and KV pages."""

    def _wish(self, load: Load) -> int:
        return wanted_targets(load, self._limits)

    def _load(self, context: AutoscalingContext, now: float) -> Load | None:
        reported = reports.latest.get(context.app_name or "", now)
        demand = PoolDemand() if reported is None else reported.pools.get(self._pool, PoolDemand())
        return self._own(context, now, demand, 0.0)


class DraftPolicy(_PoolPolicy):
    """Pools below the target: the rounds that want them, and those that starve."""

    def _wish(self, load: Load) -> int:
        return wanted_drafts(load, self._limits)

    def _load(self, context: AutoscalingContext, now: float) -> Load | None:
        reported = reports.latest.get(context.app_name or "", now)
        if reported is None:
            return None
        return self._own(context, now, reported.pools.get(self._pool, PoolDemand()), reported.rounds)

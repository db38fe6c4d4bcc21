"""The actors behind one replica of a tier, which live, die and are rebuilt together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import ray
from ray.exceptions import RayError

from actors.draft import DEFAULT_FACTORY, DraftActor
from actors.drafter_specs import DrafterSpec, DraftModelSpec
from actors.spec import InlineTier, ModelSpec
from actors.watch import WatchSpec
from actors.wire.access import Endpoint

logger = logging.getLogger(__name__)

MAX_CALLS = 10_000  # concurrent calls of one actor: a waiting `wait_closed` per sequence
UPDATABLE = ("model", "weights")  # of a draft, in place
MAX_REBUILDS = 5  # in a row, then the replica is handed back to Serve


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What a replica of one tier creates."""

    name: str
    spec: ModelSpec
    drafter: DrafterSpec | None  # None: this tier verifies
    law_support: int
    num_cpus: float  # logical, per actor
    num_gpus: float  # per actor
    accelerator_type: str | None
    resources: dict[str, float]  # custom Ray resources per actor
    inline: tuple[InlineTier, ...] = ()  # tiers below that run in the process of the (first) actor, smallest first
    draft_factory: str = DEFAULT_FACTORY  # "module:function", replaced in tests
    watch: WatchSpec = WatchSpec()  # how its processes are watched
    model_name: str = "outrider"  # of the service, for metrics
    metrics_interval_s: float = 10.0  # how often its metrics are published
    ray_metrics: bool = False  # whether they are published through Ray

    def actor_options(self) -> dict[str, Any]:
        """Ray options of each child actor; Ray never restarts one by itself: a group is a unit."""
        options: dict[str, Any] = {
            "num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "resources": dict(self.resources),
            "max_restarts": 0, "max_task_retries": 0, "max_concurrency": MAX_CALLS,
        }
        if self.accelerator_type:
            options["accelerator_type"] = self.accelerator_type
        return options


def updated(settings: PoolSettings, changes: Mapping[str, object]) -> PoolSettings:
    """The settings with another model, of a pool that drafts. Raises ValueError with one line.

    A target is not changed in place: a stream that lost its replica half-way would go on with another model's text.
    """
    if not changes:
        return settings
    if settings.drafter is None:
        raise ValueError(f"user_config: tier {settings.name!r} decides tokens; deploy another application instead")
    unknown = sorted(set(changes) - set(UPDATABLE))
    if unknown:
        raise ValueError(f"user_config.{unknown[0]}: only {' and '.join(UPDATABLE)} of a draft can be changed in place")
    for name, value in changes.items():
        if not isinstance(value, str) or not value:
            raise ValueError(f"user_config.{name}: {value!r} is no name; write it as in the tier's own settings")
    return replace(settings, spec=replace(settings.spec, **changes))  # type: ignore[arg-type]  # checked above


class Group(Protocol):
    """Actors that rebuild themselves as a unit; see `actors.target.TargetGroup`."""

    generation: int  # grows with every rebuild

    @property
    def leader(self) -> Any:
        """Handle of the actor that takes calls."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it takes those of every round."""

    async def start(self) -> object:
        """Create the actors and wait until the model is loaded. Raises when that fails."""

    def alive(self) -> bool:
        """False from the death of an actor until the group is rebuilt."""

    async def check(self, timeout_s: float = 10.0) -> bool:
        """Whether every actor answers within `timeout_s`."""

    async def shutdown(self) -> None:
        """Kill the actors for good."""


class DraftGroup:
    """A group of one: the drafting actor. `on_lost(generation)` is called before a rebuild."""

    def __init__(self, settings: PoolSettings, on_lost: Callable[[int], None]) -> None:
        self._settings = settings
        self._on_lost = on_lost
        self._alive = False
        self._supervisor: asyncio.Task[None] | None = None
        self.generation = 0
        self.leader: Any = None
        self._endpoint: Endpoint | None = None

    async def start(self) -> None:
        """Create the actor, wait until its model is loaded, and watch it."""
        await self._build()
        self._supervisor = asyncio.create_task(self._supervise())

    async def _build(self) -> None:
        actor = ray.remote(DraftActor).options(**self._settings.actor_options())
        drafter = self._settings.drafter or DraftModelSpec()
        self.leader = actor.remote(
            self._settings.spec, drafter, self._settings.draft_factory, self._settings.inline, self._settings.watch,
            self._settings.name,
        )
        self._endpoint = await self.leader.listen.remote()
        self.generation += 1
        self._alive = True

    async def _supervise(self) -> None:
        """A call that never returns tells of the actor's death at once; then a new one is made."""
        attempt = 0
        while attempt < MAX_REBUILDS:
            try:
                if not self._alive:
                    await self._build()
                    logger.warning("draft actor rebuilt", extra={"pool": self._settings.name})
                attempt = 0
                await self.leader.hold.remote()
            except RayError as error:
                reason = type(error).__name__
                logger.warning("draft actor lost", extra={"pool": self._settings.name, "reason": reason})
                if self._alive:
                    self._alive = False
                    self._on_lost(self.generation)
                else:  # it died before it was ready
                    attempt += 1
                    await asyncio.sleep(min(30.0, 2.0**attempt))

    @property
    def endpoint(self) -> Endpoint:
        """Where the actor takes proposals."""
        if self._endpoint is None:
            raise RuntimeError(f"{self._settings.name}: its actor was never started")
        return self._endpoint

    def alive(self) -> bool:
        """Whether the actor is there and ready."""
        return self._alive

    async def check(self, timeout_s: float = 10.0) -> bool:
        """Whether the actor answers."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.leader.ping.remote()
        except (RayError, TimeoutError):
            return False
        return True

    async def shutdown(self) -> None:
        """Kill the actor."""
        self._alive = False
        if self._supervisor is not None:
            self._supervisor.cancel()
        if self.leader is not None:
            ray.kill(self.leader)


def make_group(settings: PoolSettings, on_lost: Callable[[int], None]) -> Group:
    """The actors that a tier of this kind needs."""
    if settings.drafter is not None:
        return DraftGroup(settings, on_lost)
    from actors.target import TargetGroup  # late: a drafting replica needs none of it

    ranks = [settings.actor_options()] * settings.spec.tensor_parallel_size
    return TargetGroup(
        settings.spec, ranks, law_support=settings.law_support, inline=settings.inline, on_lost=on_lost,
        watch=settings.watch, name=settings.name,
    )

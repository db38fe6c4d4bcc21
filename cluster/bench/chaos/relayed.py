"""A pool's replica that the bench can look into, and whose actors' connections it can send through a bad network."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError

from actors.messages import ReplicaStats
from actors.wire.access import Endpoint
from actors.wire.server import node_address
from cluster.app import application
from cluster.bench.chaos.relay import Relay, Trouble
from cluster.config import load_config
from cluster.groups import PoolSettings
from cluster.pools import Pool
from cluster.routing import Preference

LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class View:
    """A replica and its actors."""

    tag: str
    pid: int
    node_id: str
    num_leases: int
    actor_pids: tuple[int, ...]  # rank 0 first; empty while they are being rebuilt
    stats: ReplicaStats | None  # likewise
    num_hit: int = 0  # messages that its relays mistreated

    @property
    def ready(self) -> bool:
        """Whether it takes sequences."""
        return bool(self.actor_pids)

    @property
    def idle(self) -> bool:
        """Whether nothing is left of any sequence."""
        stats = self.stats
        return (
            stats is not None and self.num_leases == 0 and stats.num_sequences == 0
            and stats.num_free_pages == stats.num_pages
        )


def build(args: dict[str, Any]) -> serve.Application:
    """As `cluster.app.build`, of pools that can be looked into."""
    return application(load_config(args, environ={}), RelayedPool)


class RelayedPool(Pool):
    """A `Pool` with a relay in front of each generation of its actors, once one is asked for.

    The methods' `preference` is for the router, which reads positional
    arguments: it lets a caller name the replicas that it has met.
    """

    async def __init__(self, settings: PoolSettings) -> None:  # type: ignore[misc]  # Serve awaits it
        self._relays: dict[Endpoint, Relay] = {}  # by the actor's own endpoint
        self._ways: dict[Endpoint, Endpoint] = {}  # from it to its relay's
        self._relayed = False
        self._trouble: Trouble | None = None
        await super().__init__(settings)

    async def relay(self, on: bool, preference: Preference) -> str:
        """Whether leases that are granted from now on go through a relay. Answers the replica's tag."""
        self._relayed = on
        return self._tag

    async def disturb(self, trouble: Trouble | None, preference: Preference) -> str:
        """What the relays do from now on; None: nothing. Answers the replica's tag."""
        self._trouble = trouble
        for relay in self._relays.values():
            relay.disturb(trouble)
        return self._tag

    async def drain_self(self, preference: Preference) -> str:
        """Empty this replica. Answers its tag."""
        await self.drain(self._tag)
        return self._tag

    async def view(self, preference: Preference) -> View:
        """What there is of it now."""
        pids, stats = (), None
        if self._group.alive() and not self._draining.is_set():
            actors: list[Any] = list(getattr(self._group, "ranks", ())) or [self._group.leader]
            try:
                async with asyncio.timeout(LOOK_S):
                    pids = tuple(await asyncio.gather(*(actor.pid.remote() for actor in actors)))
                    stats = await self.stats()
            except (RayError, TimeoutError):  # it died or stands still
                pids, stats = (), None
        node_id = ray.get_runtime_context().get_node_id()
        num_hit = sum(relay.num_hit for relay in self._relays.values())
        return View(self._tag, os.getpid(), node_id, len(self._leases), pids, stats, num_hit)

    async def _reached_at(self) -> Endpoint:
        actor = self._group.endpoint
        if not self._relayed:
            return actor
        if actor not in self._relays:
            relay = Relay(actor)
            relay.disturb(self._trouble)
            self._relays[actor] = relay  # before the wait: the next lease finds it
            self._ways[actor] = await relay.listen(node_address())
        while actor not in self._ways:
            await asyncio.sleep(0.01)
        return self._ways[actor]

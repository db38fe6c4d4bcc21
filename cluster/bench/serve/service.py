"""The service under load, and what the bench may know of it besides its port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from actors.messages import ReplicaStats
from cluster.config import Config
from cluster.edge.access import Access, reached


@dataclass(frozen=True, slots=True)
class PoolState:
    """One tier's pool (of one replica)."""

    name: str
    num_leases: int
    stats: ReplicaStats

    @property
    def idle(self) -> bool:
        """Nobody holds it, and every page is free (some may still be of use for their prefix)."""
        return (
            self.num_leases == 0 and self.stats.num_sequences == 0
            and self.stats.num_free_pages == self.stats.num_pages
        )


@dataclass(frozen=True, slots=True)
class Service:
    """Where it listens; the rest is None for a service that somebody else started."""

    address: str | Access
    config: Config | None = None
    pools: Callable[[], list[PoolState]] | None = None
    processes: Callable[[], Sequence[psutil.Process]] | None = None
    application: str | None = None  # of several that Serve runs there; None: the only one

    @property
    def name(self) -> str:
        """host:port."""
        return reached(self.address).address


def serve_pools(config: Config, application: str) -> Callable[[], list[PoolState]]:
    """Reads the pools of an application on the Ray that this process is connected to."""
    from ray import serve

    handles: list[tuple[str, Any]] = [
        (tier.name, serve.get_deployment_handle(f"tier{index}-{tier.name}", application))
        for index, tier in enumerate(config.tiers) if not tier.inline
    ]

    def read() -> list[PoolState]:
        return [
            PoolState(
                name, int(handle.num_leases.remote().result(timeout_s=30)), handle.stats.remote().result(timeout_s=30)
            )
            for name, handle in handles
        ]

    return read

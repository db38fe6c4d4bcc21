"""Which replicas of a pool run, as Serve tells each process that calls it.

A pool's router is told of every change (`cluster.router`). A replica that scales down, is replaced by an update or
fails its health checks leaves the set at once, and what it holds goes on elsewhere; an empty set is a pool that sleeps.
"""

from __future__ import annotations


class Running:
    """Tags of one pool's running replicas; written by its router's thread, read by others."""

    def __init__(self, tags: frozenset[str] | None = None) -> None:
        self.tags = tags  # None: Serve has not told yet

    def left(self, tag: str) -> bool:
        """Whether a replica that was met is known to be going away."""
        tags = self.tags
        return tags is not None and tag not in tags

    @property
    def none(self) -> bool:
        """Whether the pool is known to have no replica."""
        return self.tags is not None and not self.tags


_pools: dict[tuple[str, str], Running] = {}


def running(application: str, deployment: str) -> Running:
    """What this process knows of a pool; always the same object."""
    return _pools.setdefault((application, deployment), Running())

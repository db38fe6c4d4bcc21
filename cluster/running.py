"""Which replicas of a pool run, as Serve tells each process that calls it.

A pool's router is told of every change (`cluster.router`). A replica that scales down, is replaced by an update or
fails its health checks leaves the set at once, and what it holds goes on elsewhere; an empty set is a pool that sleeps.
When replicas come, the newcomers' share of the sequences may move, so that long streams do not stay crowded together.
"""

from __future__ import annotations

import zlib


class Running:
    """Tags of one pool's running replicas; written by its router's thread, read by others."""

    def __init__(self, tags: frozenset[str] | None = None) -> None:
        self.tags = tags  # None: Serve has not told yet
        self.growths: tuple[float, ...] = ()  # of each time that replicas joined others: their share of all

    def told(self, tags: frozenset[str]) -> None:
        """These run from now on."""
        stayed = tags & (self.tags or frozenset())
        self.tags = tags
        if stayed and tags - stayed:
            self.growths = (*self.growths, 1.0 - len(stayed) / len(tags))

    def left(self, tag: str) -> bool:
        """Whether a replica that was met is known to be going away."""
        tags = self.tags
        return tags is not None and tag not in tags

    @property
    def none(self) -> bool:
        """Whether the pool is known to have no replica."""
        return self.tags is not None and not self.tags


class Stay:
    """A sequence's stay with a replica, from now on: whether it should make room for one that came since."""

    def __init__(self, running: Running, sequence_id: str) -> None:
        self._running = running
        self._sequence_id = sequence_id
        self._seen = len(running.growths)
        self._over = False

    @property
    def over(self) -> bool:
        """Drawn once per growth, from the sequence's name: of all that were there, about the newcomers' share moves."""
        growths = self._running.growths
        while self._seen < len(growths) and not self._over:
            drawn = zlib.crc32(f"{self._seen} {self._sequence_id}".encode()) / 2**32
            self._over = drawn < growths[self._seen]
            self._seen += 1
        return self._over


_pools: dict[tuple[str, str], Running] = {}


def running(application: str, deployment: str) -> Running:
    """What this process knows of a pool; always the same object."""
    return _pools.setdefault((application, deployment), Running())

"""How a bench tells what it is doing, whoever shows it."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Shows progress."""

    def section(self, name: str, num_runs: int) -> None:
        """A part of the bench begins; `run_done` will be called `num_runs` times."""

    def run_done(self) -> None:
        """One more run of the current part."""


class Unwatched:
    """Shows nothing."""

    def section(self, name: str, num_runs: int) -> None:
        """See `Watcher.section`."""

    def run_done(self) -> None:
        """See `Watcher.run_done`."""

"""What every worker over an engine has in common: its identity, counters and end."""

from __future__ import annotations

from collections.abc import Callable

from actors.engine.engine import Engine
from actors.messages import Ids, ReplicaInfo, ReplicaStats


class EngineBacked:
    """A drafter or verifier whose state is one engine's."""

    def __init__(self, engine: Engine, info: ReplicaInfo) -> None:
        self.engine = engine
        self._info = info

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Forget a sequence and free its pages; unknown ids are ignored. `truth`: see `Engine.close`."""
        self.engine.close(sequence_id, truth)

    def between_steps(self, act: Callable[[], None]) -> None:
        """Run `act` as soon as no step is under way."""
        self.engine.between_steps(act)

    def stats(self) -> ReplicaStats:
        """Current counters."""
        return self.engine.stats()

    def info(self) -> ReplicaInfo:
        """What this replica serves."""
        return self._info

    def shutdown(self) -> None:
        """Stop the engine; what is pending fails."""
        self.engine.shutdown()

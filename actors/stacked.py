"""What every worker made of two tiers in one process has in common: their sequences, counters and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from actors.chains import Baton
from actors.messages import Ids, ReplicaInfo, ReplicaStats
from actors.truths import Truths

LOWER, UPPER = 0, 1  # workers of `Stacked.truths`


class Worker(Protocol):
    """What a drafter and a verifier have in common."""

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Forget a sequence."""

    def between_steps(self, act: Callable[[], None]) -> None:
        """Run `act` as soon as no step is under way."""

    def stats(self) -> ReplicaStats:
        """Current counters."""

    def shutdown(self) -> None:
        """Stop; what is pending fails."""


class UpperWorker(Worker, Protocol):
    """A worker with a model."""

    def info(self) -> ReplicaInfo:
        """What it serves."""


class Stacked:
    """A tier and the one below it. To the outside it is the upper one, whose lower one needs no call of its own."""

    def __init__(self, lower: Worker, upper: UpperWorker, idle_timeout_s: float) -> None:
        self.truths = Truths(2, idle_timeout_s)
        self.batons = (Baton(lower.between_steps), Baton(upper.between_steps))
        self._both: tuple[Worker, Worker] = (lower, upper)
        self._info = upper.info()

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Forget a sequence in both tiers; unknown ids are ignored. `truth`: see `Engine.close`."""
        self.truths.forget(sequence_id)
        for worker in self._both:
            worker.close(sequence_id, truth)

    def between_steps(self, act: Callable[[], None]) -> None:
        """Run `act` as soon as the upper tier, which answers last, has no step under way."""
        self._both[UPPER].between_steps(act)

    def info(self) -> ReplicaInfo:
        """What the upper tier serves."""
        return self._info

    def stats(self) -> ReplicaStats:
        """The upper tier's steps and rows, the pages of both; `extra` has the lower tier's own under "below."."""
        lower, upper = (worker.stats() for worker in self._both)
        below = {
            "num_sequences": float(lower.num_sequences), "num_free_pages": float(lower.num_free_pages),
            "num_pages": float(lower.num_pages), "num_steps": float(lower.num_steps),
            "num_rows": float(lower.num_rows), **lower.extra,
        }
        return ReplicaStats(
            num_sequences=max(lower.num_sequences, upper.num_sequences),
            num_free_pages=lower.num_free_pages + upper.num_free_pages,
            num_cached_pages=lower.num_cached_pages + upper.num_cached_pages,
            num_pages=lower.num_pages + upper.num_pages, num_steps=upper.num_steps, num_rows=upper.num_rows,
            extra={**upper.extra, **{f"below.{name}": value for name, value in below.items()}},
        )

    def shutdown(self) -> None:
        """Stop both tiers; what is pending fails."""
        for worker in self._both:
            worker.shutdown()

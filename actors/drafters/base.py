"""The contract of a drafter: given the truth, propose up to k tokens."""

from __future__ import annotations

import abc
from collections.abc import Callable
from concurrent.futures import Future

from actors.messages import Context, Draft, DraftShape, Ids, ReplicaStats


class Drafter(abc.ABC):
    """Proposes tokens for many sequences at once.

    Everything a drafter holds is a cache that may vanish. A drafter never raises for a request it
    cannot serve: it answers an empty `Draft` whose `error` says why, and the round goes on plain.
    """

    @abc.abstractmethod
    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """Queue a proposal after `context`; a drafter that knows no trees answers a chain of `shape.num_tokens`."""

    @abc.abstractmethod
    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Forget a sequence and free what it held; unknown ids are ignored.

        `truth`, all its committed tokens, says what a later prompt may find again.
        """

    def between_steps(self, act: Callable[[], None]) -> None:
        """Run `act` when what answers several proposals at once has answered them all: at once, by default."""
        act()

    @abc.abstractmethod
    def stats(self) -> ReplicaStats:
        """Current counters."""

    @abc.abstractmethod
    def shutdown(self) -> None:
        """Stop worker threads; pending proposals end with an error draft."""

"""What the engine runs: a sequence's pending rows, and what to do with their logits."""

from __future__ import annotations

import abc
import time
from concurrent.futures import Future
from typing import Any

from actors.messages import Context, Ids
from actors.sampling.rows import LogitRows


class PrefixMissing(Exception):
    """The engine does not hold `[0, start)` of this sequence; call again with the whole prefix."""


class StaleCall(Exception):
    """A later call of the same sequence has replaced this one, or the sequence was closed."""


class SequenceRejected(Exception):
    """The sequence cannot be run by this model as configured (too long, KV memory too small); one clear sentence."""


class ReplicaFull(Exception):
    """This replica has no room for the call now: it may be served elsewhere, or here later; one clear sentence."""


class Job(abc.ABC):
    """One call on one sequence: rows to feed, then a decision on their logits, possibly repeated.

    The engine's thread alone touches a job after `submit`.
    """

    def __init__(self, context: Context, future: Future[Any]) -> None:
        self.context = context
        self.future = future
        self.created_s = time.monotonic()
        # Set by the engine:
        self.arrival = 0  # order of the calls
        self.num_cached_tokens = 0  # found in the prefix cache when the sequence was opened
        self.first_logit = 0  # position from which on logits are wanted
        self.pending: list[LogitRows] = []  # of a pass that took several steps, oldest first
        self.model_seconds = 0.0  # inside forward passes that this call took part in
        self.pass_rows, self.pass_seconds = 0, 0.0  # of the last of them, other sequences' rows included
        # Set by the job:
        self.num_decided = 0  # tokens of the sequence that this tier has decided: they may enter the prefix cache

    @abc.abstractmethod
    def draft_ids(self) -> Ids:
        """Unverified ids fed after the context, [num_draft] int32."""

    @abc.abstractmethod
    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Decide on the logits of the last token of `history_ids` and of the ids fed after it.

        `history_ids` (a view, for the time of the call) is the context with whatever this job appended.
        Returns an id to append and run next, or None when the future has been resolved.
        """

    @abc.abstractmethod
    def fail(self, error: Exception) -> None:
        """Resolve the future with `error` in the job's own terms."""

    @property
    def seconds(self) -> float:
        """Wall time since the job was made, queue included."""
        return time.monotonic() - self.created_s

"""What the engine runs: a sequence's pending rows, and what to do with their logits."""

from __future__ import annotations

import abc
import time
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from actors.messages import Context


class PrefixMissing(Exception):
    """The engine does not hold `[0, start)` of this sequence; call again with the whole prefix."""


class StaleCall(Exception):
    """A later call of the same sequence has replaced this one, or the sequence was closed."""


class SequenceRejected(Exception):
    """The sequence cannot be run here (too long, KV memory too small); one clear sentence."""


class Job(abc.ABC):
    """One call on one sequence: rows to feed, then a decision on their logits, possibly repeated.

    The engine's thread alone touches a job after `submit`.
    """

    def __init__(self, context: Context, future: Future[Any]) -> None:
        self.context = context
        self.future = future
        self.created_s = time.monotonic()
        self.history_ids = np.empty(0, np.int32)  # set by the engine: the whole context, [num_tokens]
        self.num_cached_tokens = 0  # set by the engine: found in the prefix cache when the sequence was opened
        self.first_logit_position = 0  # set by the engine: logits are wanted from here on
        self.pending_logits: list[torch.Tensor] = []  # rows collected so far, oldest first

    @abc.abstractmethod
    def draft_ids(self) -> np.ndarray:
        """Unverified ids fed after the context, [num_draft] int32."""

    @abc.abstractmethod
    def on_logits(self, logits: torch.Tensor) -> int | None:
        """Decide on logits [num_draft + 1, vocab] of the last context token and the fed draft.

        Returns an id to append and run next, or None when the future has been resolved.
        """

    @abc.abstractmethod
    def fail(self, error: Exception) -> None:
        """Resolve the future with `error` in the job's own terms."""

    @property
    def seconds(self) -> float:
        """Wall time since the job was made, queue included."""
        return time.monotonic() - self.created_s

"""What the tiers that share a process hold of each sequence: each is told only what it lacks.

The caller of a process names what the sequence consists of since the call before (`Context.start`), but not every call
reaches every tier in it. So the whole sequence is kept here, and for each worker what it has answered for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

import numpy as np

from actors.chains import Baton, Steps
from actors.engine.jobs import PrefixMissing, StaleCall
from actors.handover import Handover
from actors.messages import Context, Draft, Features, Ids, Verdict

Answer = TypeVar("Answer", Draft, Verdict)


class Superseded(StaleCall):
    """A later call of the sequence has begun, or the sequence was closed: this one goes no further."""


class _Sequence:
    """One sequence; `held[worker]` is None while nobody can say what the worker holds (it may be at work)."""

    def __init__(self, num_workers: int) -> None:
        self.lock = threading.RLock()  # an engine that has ended runs what waits for it in the thread of the next call
        self.ids: Ids = np.empty(0, np.int32)
        self.round = -1
        self.held: list[Ids | None] = [None] * num_workers
        self.call: Telling | None = None  # the latest
        self.handover = Handover()
        self.used_at = 0.0  # seconds of the clock


class Telling:
    """One call of a sequence: makes the contexts that its workers are told."""

    def __init__(self, sequence: _Sequence, context: Context) -> None:
        self._sequence = sequence
        self._context = context
        self.ids = sequence.ids  # the whole truth of this call, [context.num_tokens]

    def ask(
        self, worker: int, baton: Baton, ids: Ids, round: int, call: Callable[[Context], Future[Answer]]
    ) -> Steps[Answer]:
        """What `worker` answers to `call`, told that the sequence is `ids`; told all of it if it lacks the beginning.

        Raises `Superseded`, and what the call raises.
        """
        while True:
            with self._sequence.lock:
                self._check_current()
                held, self._sequence.held[worker] = self._sequence.held[worker], None
                start = 0 if held is None else _num_common(held, ids)
                future = call(self._told(ids, start, round))
            answer: Answer = yield future, baton
            if answer.prefix_missing and start > 0:
                continue
            if answer.error is None and not answer.prefix_missing:
                with self._sequence.lock:
                    if self._sequence.call is self:
                        self._sequence.held[worker] = ids
            return answer

    def take_features(self, ids: Ids) -> Features | None:
        """Those of the upper tier that the lower one has not seen before the last of `ids`; the caller hands them over.
        """
        with self._sequence.lock:
            return self._sequence.handover.take(ids) if self._sequence.call is self else None

    def features_from(self, ids: Ids, missing: int = -1, window: int = 0) -> int:
        """First position whose features the upper tier's pass after `ids` shall answer. `missing`: what the lower one
        has said that it lacks, if anything; `window`: how many it needs (`Drafter.feature_window`)."""
        with self._sequence.lock:
            if missing >= 0 and self._sequence.call is self:
                self._sequence.handover.misses(missing)
            return self._sequence.handover.wanted_from(ids, window)

    def keep_features(self, ids: Ids, verdict: Verdict) -> Verdict:
        """Those of a verdict after `ids` wait for the next proposal. Returns it without them."""
        if verdict.features is None:
            return verdict
        with self._sequence.lock:
            if self._sequence.call is self:
                text = np.concatenate([ids, verdict.tokens[: verdict.num_accepted]])
                self._sequence.handover.keep(text, verdict.features)
        return replace(verdict, features=None)

    def _check_current(self) -> None:
        if self._sequence.call is not self:
            raise Superseded("a later call of this sequence has begun")

    def _told(self, ids: Ids, start: int, round: int) -> Context:
        of = self._context
        return Context(
            of.sequence_id, start, ids[start:], of.num_prompt_tokens, of.num_committed, of.sampling, round,
        )


class Truths:
    """The sequences of a process. Safe to call from several threads."""

    def __init__(
        self, num_workers: int, idle_timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._num_workers = num_workers
        self._idle_timeout_s = idle_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sequences: dict[str, _Sequence] = {}  # least recently called first

    def begin(self, context: Context) -> Telling:
        """A call; an earlier one of the sequence goes no further. Raises `PrefixMissing`, `StaleCall`."""
        now = self._clock()
        with self._lock:
            self._drop_idle(now)
            sequence = self._sequences.get(context.sequence_id) or _Sequence(self._num_workers)
            with sequence.lock:
                if context.start > len(sequence.ids):
                    raise PrefixMissing
                if context.round < sequence.round:
                    raise StaleCall("a later call of this sequence came first")
                sequence.ids = np.concatenate([sequence.ids[: context.start], context.tokens])
                sequence.round, sequence.used_at = context.round, now
                telling = sequence.call = Telling(sequence, context)
            self._sequences.pop(context.sequence_id, None)
            self._sequences[context.sequence_id] = sequence
        return telling

    def forget(self, sequence_id: str) -> None:
        """End a sequence and its call; unknown ids are ignored."""
        with self._lock:
            sequence = self._sequences.pop(sequence_id, None)
        if sequence is not None:
            with sequence.lock:
                sequence.call = None

    def _drop_idle(self, now: float) -> None:
        """Forget sequences nobody called for `idle_timeout_s`; a later call of one has to name all of it."""
        while self._sequences:
            oldest = next(iter(self._sequences))
            if now - self._sequences[oldest].used_at <= self._idle_timeout_s:
                return
            del self._sequences[oldest]


def _num_common(held: Ids, ids: Ids) -> int:
    """Length of the common prefix; leaves at least one token to tell."""
    length = max(0, min(len(held), len(ids) - 1))
    differs = np.flatnonzero(held[:length] != ids[:length])
    return int(differs[0]) if len(differs) else length

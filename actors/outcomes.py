"""Which branch of an enumeration a verify pass turned out to lead to.

The target alone knows the outcome of its pass, and is the first to know: the branch that fits is verified in the very
next step, without a word to the coordinator in between.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from actors.messages import Context, Draft, Enumeration, Ids, Origin, Verdict

_NO_IDS: Ids = np.empty(0, np.int32)
Value = TypeVar("Value")
Verify = Callable[[Context, Draft], "Future[Verdict]"]


@dataclass(frozen=True, slots=True)
class _Outcome:
    context: Context
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class _Waiting:
    round: int
    enumeration: Enumeration
    answer: Future[Verdict]


class Outcomes:
    """The latest outcome of each sequence, and the enumerations that wait for one. For any thread."""

    def __init__(self, verify: Verify, max_sequences: int, tier: int) -> None:
        """`verify` queues the pass over a branch."""
        self._verify = verify
        self._max_sequences = max_sequences
        self._tier = tier
        self._lock = threading.RLock()  # a pass over a branch begins while it is held
        self._running: OrderedDict[str, int] = OrderedDict()  # round of the pass under way
        self._latest: OrderedDict[str, _Outcome] = OrderedDict()
        self._waiting: dict[str, _Waiting] = {}

    def begin(self, context: Context) -> None:
        """A pass is about to be queued."""
        with self._lock:
            _keep(self._running, context.sequence_id, context.round, self._max_sequences)

    def decided(self, context: Context, future: Future[Verdict]) -> None:
        """A pass has ended, one way or another."""
        with self._lock:
            self._decided(context, future)

    def _decided(self, context: Context, future: Future[Verdict]) -> None:
        sequence_id = context.sequence_id
        if self._running.get(sequence_id) == context.round:
            del self._running[sequence_id]
        failed = future.cancelled() or future.exception() is not None
        verdict = None if failed else future.result()
        if verdict is not None and len(verdict.tokens):
            latest = self._latest.get(sequence_id)
            if latest is None or latest.context.round < context.round:
                _keep(self._latest, sequence_id, _Outcome(context, verdict), self._max_sequences)
        waiting = self._waiting.get(sequence_id)
        if waiting is not None and waiting.enumeration.round <= context.round:
            del self._waiting[sequence_id]
            self._settle(sequence_id, waiting)

    def meet(self, sequence_id: str, round: int, enumeration: Enumeration, answer: Future[Verdict]) -> None:
        """Answer with the verdict of the branch that fits: now, or once its pass is decided."""
        waiting = _Waiting(round, enumeration, answer)
        with self._lock:
            earlier = self._waiting.pop(sequence_id, None)
            if earlier is not None:
                self._miss(earlier)
            if self._running.get(sequence_id) == enumeration.round:
                self._waiting[sequence_id] = waiting
            else:
                self._settle(sequence_id, waiting)

    def forget(self, sequence_id: str) -> None:
        """The sequence is closed."""
        with self._lock:
            self._latest.pop(sequence_id, None)
            self._running.pop(sequence_id, None)
            waiting = self._waiting.pop(sequence_id, None)
            if waiting is not None:
                self._miss(waiting)

    def _settle(self, sequence_id: str, waiting: _Waiting) -> None:
        outcome = self._latest.get(sequence_id)
        branch = None
        if outcome is not None and outcome.context.round == waiting.enumeration.round:
            branch = waiting.enumeration.find(outcome.verdict.last_node, int(outcome.verdict.tokens[-1]))
        if outcome is None or branch is None:
            self._miss(waiting)
            return
        context, tokens = outcome.context, outcome.verdict.tokens
        now = Context(
            sequence_id, start=context.num_tokens, tokens=tokens, num_prompt_tokens=context.num_prompt_tokens,
            num_committed=context.num_tokens + len(tokens), sampling=context.sampling, round=waiting.round,
        )
        _hand_on(self._verify(now, branch.draft), waiting.answer)

    def _miss(self, waiting: _Waiting) -> None:
        if waiting.answer.set_running_or_notify_cancel():
            waiting.answer.set_result(Verdict(_NO_IDS, 0, 0, Origin.PLAIN, tier=self._tier, missed=True))


def _keep(table: OrderedDict[str, Value], key: str, value: Value, most: int) -> None:
    """Sequences that the engine freed by itself are never named again: the oldest entries go."""
    table[key] = value
    table.move_to_end(key)
    while len(table) > most:
        table.popitem(last=False)


def _hand_on(source: Future[Verdict], answer: Future[Verdict]) -> None:
    def hand(done: Future[Verdict]) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        error = done.exception()
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(done.result())

    source.add_done_callback(hand)

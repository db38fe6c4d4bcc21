"""A draft model that reads and writes in tokens of its own, before a tier that has others.

The sequence of each request is kept in both (`recoding`); calls come and drafts go in the verifying tier's ids.
"""

from __future__ import annotations

import abc
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np

from actors.drafters.base import Drafter
from actors.drafters.model import ModelDrafter
from actors.drafters.translate.recoding import Recoding
from actors.drafters.translate.spelling import Spelling, shared_tokens
from actors.messages import Context, Draft, DraftShape, Ids, ReplicaInfo, ReplicaStats

NO_IDS: Ids = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Call:
    """One proposal, in both tiers' tokens."""

    context: Context  # all of it, in the verifying tier's ids
    lower: Context  # in the draft model's
    shape: DraftShape
    tail: bytes  # the end of the text
    waiting: bytes  # of it, the beginning of a character that `lower` leaves out


@dataclass(slots=True)
class _Sequence:
    recoding: Recoding
    tokens: list[int] = field(default_factory=list)
    round: int = -1
    told: Ids | None = None  # what the draft model holds, in its ids
    used_at: float = 0.0  # seconds of the drafter's clock

    def tell(self, start: int, told: Sequence[int]) -> None:
        """Make both forms end in what was told, `[0, start)` being known."""
        held = self.tokens[start : start + len(told)]
        pairs = zip(held, told, strict=False)
        common = start + sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        fresh = told[common - start :]
        self.recoding.truncate(common)
        del self.tokens[common:]
        self.recoding.extend(fresh)
        self.tokens.extend(fresh)


class TranslatingDrafter(Drafter):
    """Chains of a draft model with another tokenizer. Safe to call from several threads."""

    _TAIL = 8  # tokens of the text that a call brings

    def __init__(
        self, inner: ModelDrafter, lower: Spelling, upper: Spelling, info: ReplicaInfo, idle_timeout_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`info`: as the verifying tier shall see this one, whose ids it speaks."""
        self._inner = inner
        self._lower, self._upper = lower, upper
        self._shared = shared_tokens(lower, upper)
        self._control = {token: self._shared.lower_of[token] for token in upper.special if token in
                         self._shared.lower_of}
        self._info = info
        self._idle_timeout_s = idle_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sequences: dict[str, _Sequence] = {}  # least recently used first

    @abc.abstractmethod
    def _ask(self, call: Call) -> Future[Draft]:
        """Have the draft model draft, in its own tokens or in the verifying tier's."""

    @abc.abstractmethod
    def _answer(self, call: Call, draft: Draft) -> Draft:
        """What was asked for, in the verifying tier's tokens."""

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """Queue a chain of at most `shape.num_tokens` tokens."""
        future: Future[Draft] = Future()
        with self._lock:
            found = self._prepared(context, shape)
            if isinstance(found, Draft):
                future.set_result(found)
                return future
            asked = self._ask(found)
        asked.add_done_callback(lambda done: self._done(found, done.result(), future))
        return future

    def _prepared(self, context: Context, shape: DraftShape) -> Call | Draft:
        """The call, or why there can be none."""
        now = self._clock()
        self._drop_idle(now)
        sequence = self._sequences.pop(context.sequence_id, None) or self._open()
        self._sequences[context.sequence_id] = sequence  # popped and put back: most recently used last
        sequence.used_at = now
        tier = self._info.tier
        if context.round < sequence.round:
            return Draft(NO_IDS, tier=tier, error=f"stale call: round {context.round} after round {sequence.round}")
        if context.start > len(sequence.tokens):
            return Draft(NO_IDS, tier=tier, prefix_missing=True)
        sequence.round = context.round
        sequence.tell(context.start, context.tokens.tolist())
        recoding = sequence.recoding
        ids = np.array(recoding.ids, np.int32)
        if not len(ids):
            return Draft(NO_IDS, tier=tier)
        start = 0 if sequence.told is None else _num_common(sequence.told, ids)
        sequence.told = ids
        lower = replace(
            context, start=start, tokens=ids[start:], features=None, features_from=-1,
            num_prompt_tokens=recoding.num_lower(context.num_prompt_tokens),
            num_committed=recoding.num_lower(context.num_committed),
        )
        whole = replace(context, start=0, tokens=np.array(sequence.tokens, np.int32))
        return Call(whole, lower, shape, recoding.tail(self._TAIL), recoding.waiting)

    def _done(self, call: Call, draft: Draft, future: Future[Draft]) -> None:
        """The draft model has answered; it may have forgotten what it was told before."""
        if draft.prefix_missing and call.lower.start > 0:
            again, asked = call, None
            with self._lock:
                sequence = self._sequences.get(call.context.sequence_id)
                if sequence is not None and sequence.told is not None and sequence.round == call.context.round:
                    again = replace(call, lower=replace(call.lower, start=0, tokens=sequence.told))
                    asked = self._ask(again)
            if asked is not None:
                asked.add_done_callback(lambda done: self._done(again, done.result(), future))
                return
        if draft.prefix_missing:
            draft = replace(draft, prefix_missing=False, error="the draft model lost the beginning of the text")
        if draft.error is not None:
            with self._lock:  # nobody knows what it holds
                sequence = self._sequences.get(call.context.sequence_id)
                if sequence is not None and sequence.round == call.context.round:
                    sequence.told = None
        try:
            answer = self._answer(call, draft) if len(draft.tokens) else draft
        except Exception as error:  # a draft is a convenience: the round goes on plain and says why
            answer = replace(draft, tokens=NO_IDS, laws=None, parents=None, error=f"{type(error).__name__}: {error}")
        if future.set_running_or_notify_cancel():
            future.set_result(answer)

    def _open(self) -> _Sequence:
        return _Sequence(Recoding(self._upper, self._lower, self._control))

    def _drop_idle(self, now: float) -> None:
        """Forget sequences nobody called for `idle_timeout_s`, as the draft model's engine does."""
        while self._sequences:
            oldest = next(iter(self._sequences))
            if now - self._sequences[oldest].used_at <= self._idle_timeout_s:
                return
            del self._sequences[oldest]

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Forget a sequence; unknown ids are ignored."""
        with self._lock:
            sequence = self._sequences.pop(sequence_id, None)
            ids: Ids | None = None
            if sequence is not None and truth is not None:
                sequence.tell(0, truth.tolist())
                ids = np.array(sequence.recoding.ids, np.int32)
        self._inner.close(sequence_id, ids)

    def between_steps(self, act: Callable[[], None]) -> None:
        """Run `act` as soon as the draft model is not at work."""
        self._inner.between_steps(act)

    def info(self) -> ReplicaInfo:
        """What this replica serves, in the verifying tier's ids."""
        return self._info

    def stats(self) -> ReplicaStats:
        """The draft model's counters."""
        return self._inner.stats()

    def shutdown(self) -> None:
        """Stop the draft model; what is pending fails."""
        self._inner.shutdown()


def _num_common(held: Ids, ids: Ids) -> int:
    """Length of the common prefix; leaves at least one token to tell."""
    length = max(0, min(len(held), len(ids) - 1))
    differs = np.flatnonzero(held[:length] != ids[:length])
    return int(differs[0]) if len(differs) else length

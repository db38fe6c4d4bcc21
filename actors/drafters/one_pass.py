"""Drafters whose every draft takes one pass over the target's features, whatever its length and shape.

They need no engine: a thread takes the calls that have come, brings their sequences up to date, runs one pass for all
of them, and draws each draft from its rows of logits.
"""

from __future__ import annotations

import abc
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Protocol

import numpy as np
import torch

from actors.drafters import foreseen
from actors.drafters.base import Drafter
from actors.drafters.copies import Copies, with_copies
from actors.drafters.feature_memory import Known, M, Sequences
from actors.drafters.narrowed import Narrowed
from actors.engine.features import FeaturesMissing
from actors.engine.jobs import PrefixMissing, StaleCall
from actors.engine.tree import check
from actors.heads.vocab import DraftVocabulary
from actors.messages import (
    AheadPlan,
    Context,
    Draft,
    DraftShape,
    Enumeration,
    Features,
    Ids,
    ReplicaInfo,
    ReplicaStats,
)
from actors.sampling.noise import Purpose, stream
from actors.sampling.params import VerifyMode
from actors.sampling.rows import LogitRows

log = logging.getLogger(__name__)

_IDLE_WAIT_S = 1.0
_NO_IDS: Ids = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Ask(Generic[M]):
    """One sequence's part of a pass."""

    memory: M
    fresh: Features | None  # to be added to the memory first
    newest: int  # the last token of the text
    num_tokens: int  # of the text
    num_rows: int  # places to be foreseen after it


class OnePassModel(Protocol[M]):
    """The model part: what becomes of features, and the pass."""

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """After which of the target's decoder layers it reads the residual stream."""

    @property
    def feature_size(self) -> int:
        """Values of one position's features."""

    @property
    def window(self) -> int:
        """Positions before the newest token whose features a draft needs; 0: all."""

    @property
    def max_tokens(self) -> int:
        """Longest draft."""

    def open(self) -> M:
        """Memory of a new sequence."""

    @property
    def vocabulary(self) -> DraftVocabulary:
        """Which ids it drafts."""

    def run(self, asks: Sequence[Ask[M]]) -> list[LogitRows]:
        """One pass: of each ask `num_rows` rows, logits of the drafted ids. May raise."""


class _Call(abc.ABC, Generic[M]):
    """A call under way."""

    def __init__(self, context: Context, num_rows: int) -> None:
        """`num_rows`: places to be foreseen."""
        self.context = context
        self.num_rows = num_rows
        self._began_s = time.monotonic()

    @abc.abstractmethod
    def answer(self, rows: LogitRows, known: Known[M], num_calls: int, seconds: float) -> None:
        """A pass of `seconds` for so many calls has given `rows`. May raise."""

    @abc.abstractmethod
    def fail(self, error: Exception) -> None:
        """Resolve the future with `error` in the call's own terms."""

    @property
    def seconds(self) -> float:
        """Since it came."""
        return time.monotonic() - self._began_s


class OnePassDrafter(Drafter, Generic[M]):
    """Drafts with a `OnePassModel`, many sequences per pass. Safe to call from several threads."""

    def __init__(
        self, model: OnePassModel[M], info: ReplicaInfo, *, law_support: int = 64, max_sequences: int = 64,
        memory_tokens: int | None = None, idle_timeout_s: float = 120.0, copies: Copies | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`memory_tokens`: positions that all sequences together may hold; None: what a sequence holds is small.
        `copies`: mixed into the model's laws."""
        self._model = model
        self._info = info
        self._law_support = law_support
        self._copies = copies
        self._sequences: Sequences[M] = Sequences(
            model.open, model.window, max_sequences, memory_tokens, idle_timeout_s, clock
        )
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._calls: dict[str, _Call[M]] = {}  # of the next pass, by sequence
        self._stopping = False
        self._ended = False
        self._num_passes = 0
        self._num_rows = 0
        self._pass_s = 0.0
        self._num_drafted = 0
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._loop, args=(torch.get_num_threads(), started), name="one-pass-drafter", daemon=True
        )
        self._thread.start()
        started.wait()  # from here on the process may set another number of threads

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """After which of the target's decoder layers the residual stream is wanted."""
        return self._model.feature_layers

    @property
    def feature_window(self) -> int:
        """As its model says."""
        return self._model.window

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """Queue a proposal: a chain, comb or tree, no path of it longer than the model's drafts are."""
        future: Future[Draft] = Future()
        self._submit(_Proposal(self, context, shape, future))
        return future

    def enumerate(
        self, context: Context, draft: Draft, verify_round: int, plan: AheadPlan
    ) -> Future[Enumeration]:
        """Queue drafts for the outcomes, made of what the same pass foresees of later places.

        There is something to foresee where a draft is shorter than the model's drafts can be.
        """
        future: Future[Enumeration] = Future()
        self._submit(_Lookahead(self, context, draft, verify_round, plan, future))
        return future

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Forget a sequence; unknown ids are ignored. A later prompt finds nothing here, its features have to come."""
        self._put(partial(self._close, sequence_id))

    def between_steps(self, act: Callable[[], None]) -> None:
        """Run `act` in the drafter's thread as soon as no pass is under way and all its drafts are answered."""
        self._put(act)

    def info(self) -> ReplicaInfo:
        """What this replica serves."""
        return self._info

    def stats(self) -> ReplicaStats:
        """Counters; there are no pages. `extra`: seconds of passes, tokens drafted, positions with memory and held."""
        stats = ReplicaStats(
            num_sequences=len(self._sequences), num_free_pages=0, num_cached_pages=0, num_pages=0,
            num_steps=self._num_passes, num_rows=self._num_rows,
            extra={
                "forward_s": self._pass_s, "num_drafted_tokens": float(self._num_drafted),
                "num_memory_tokens": float(self._sequences.num_tokens),
                "num_held_tokens": float(self._sequences.num_held_tokens),
            },
        )
        return with_copies(stats, self._copies)

    def shutdown(self) -> None:
        """Stop the thread; pending proposals end with an error draft."""

        def stop() -> None:
            self._stopping = True

        self._put(stop)
        self._thread.join(timeout=30)

    def _put(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        if self._ended:
            self._drain(0.0)

    def _submit(self, call: _Call[M]) -> None:
        self._put(partial(self._admit, call))

    # The drafter's thread

    def _loop(self, num_threads: int, started: threading.Event) -> None:
        torch.set_num_threads(num_threads)  # this thread's; it would take the process's latest
        started.set()
        with torch.inference_mode():
            while not self._stopping:
                self._drain(_IDLE_WAIT_S)
                self._sequences.forget_idle()
                self._guarded(self._step)
        self._sequences.clear()
        self._ended = True
        self._drain(0.0)

    def _drain(self, wait_s: float) -> None:
        """Take up all that has come; wait for the first of it."""
        try:
            command = self._commands.get(timeout=wait_s) if wait_s > 0.0 else self._commands.get_nowait()
            while True:
                self._guarded(command)
                command = self._commands.get_nowait()
        except queue.Empty:
            return

    def _guarded(self, command: Callable[[], None]) -> None:
        try:
            command()
        except Exception:  # whatever it was, the thread lives on
            log.exception("a command of the drafter failed")

    def _admit(self, call: _Call[M]) -> None:
        if self._stopping:
            call.fail(RuntimeError("the drafter is shut down"))
            return
        earlier = self._calls.get(call.context.sequence_id)
        if earlier is not None and earlier.context.round > call.context.round:
            call.fail(StaleCall("a later call of this sequence came first"))
            return
        if earlier is not None:
            earlier.fail(StaleCall("a later call of this sequence has begun"))
        self._calls[call.context.sequence_id] = call

    def _close(self, sequence_id: str) -> None:
        call = self._calls.pop(sequence_id, None)
        if call is not None:
            call.fail(StaleCall("the sequence was closed"))
        self._sequences.forget(sequence_id)

    def _step(self) -> None:
        """One pass for the calls that wait, and their answers."""
        waiting, self._calls = list(self._calls.values()), {}
        calls: list[tuple[_Call[M], Known[M]]] = []
        asks: list[Ask[M]] = []
        for call in waiting:
            try:
                known = self._caught_up(call)
            except Exception as error:  # told to the caller, by its kind
                call.fail(error)
                continue
            calls.append((call, known))
            context = call.context
            asks.append(Ask(known.held.memory, known.fresh, int(known.ids[-1]), context.num_tokens, call.num_rows))
        if not asks:
            return
        began_s = time.monotonic()
        try:
            foreseen_rows = self._model.run(asks)
        except Exception as error:  # whatever it is, the rounds go on without drafts and say why
            log.exception("a drafting pass failed")
            for call, _ in calls:
                self._sequences.forget(call.context.sequence_id)  # its memory may be half written
                call.fail(error)
            return
        seconds = time.monotonic() - began_s
        self._num_passes += 1
        self._num_rows += sum(ask.num_rows for ask in asks)
        self._pass_s += seconds
        for (call, known), rows in zip(calls, foreseen_rows, strict=True):
            try:
                call.answer(rows, known, len(asks), seconds)
            except Exception as error:  # as above, of this call alone
                call.fail(error)

    def _narrowed(self, rows: LogitRows, ids: Ids, context: Context) -> Narrowed:
        """A call as it is drawn; what was committed since the last one is looked at for copies."""
        if self._copies is not None:
            self._copies.learn(context, ids)
        return Narrowed(rows, ids, context, self._model.vocabulary, widens=self._copies is not None)

    def _caught_up(self, call: _Call[M]) -> Known[M]:
        features, size = call.context.features, self._model.feature_size
        if features is not None and features.rows.shape[1] != size:
            raise ValueError(
                f"features of {features.rows.shape[1]} values came, this head reads {size}: the target keeps those of "
                f"other layers, set its feature_layers to {list(self._model.feature_layers)}"
            )
        return self._sequences.catch_up(call.context)


class _Proposal(_Call[M]):
    """Drafts after a text."""

    def __init__(
        self, drafter: OnePassDrafter[M], context: Context, shape: DraftShape, future: Future[Draft]
    ) -> None:
        room = drafter._info.max_context_tokens - context.num_tokens + 1
        depth = min(shape.num_tokens, len(shape.widths) or shape.num_tokens, room, drafter._model.max_tokens)
        super().__init__(context, max(1, depth))
        self._of = drafter
        self._shape = replace(shape, num_tokens=self.num_rows)
        self._future = future
        future.set_running_or_notify_cancel()  # whoever loses interest closes the sequence, or calls again

    def answer(self, rows: LogitRows, known: Known[M], num_calls: int, seconds: float) -> None:
        """A draft of k places is told as k passes with a row for each call: so reckons whoever plans the next one."""
        context, of = self.context, self._of
        rng = None
        if context.sampling.mode in (VerifyMode.REJECTION, VerifyMode.BLOCK):
            rng = stream(context.sampling.entropy, Purpose.DRAFT, of._info.tier, context.round)
        narrowed = of._narrowed(rows, known.ids, context)
        draft = foreseen.draft(
            narrowed.rows, narrowed.text, narrowed.context, self._shape, of._info.tier, of._law_support, rng,
            of._copies,
        )
        of._num_drafted += len(draft.tokens)
        self._future.set_result(replace(
            narrowed.told(draft), seconds=self.seconds, model_seconds=seconds, pass_rows=num_calls,
            pass_seconds=seconds / self.num_rows,
        ))

    def fail(self, error: Exception) -> None:
        draft = Draft(_NO_IDS, tier=self._of._info.tier, seconds=self.seconds)
        match error:
            case PrefixMissing():
                draft = replace(draft, prefix_missing=True)
            case FeaturesMissing(position=position):
                draft = replace(draft, features_missing=position)
            case _:
                draft = replace(draft, error=f"{error}")
        self._future.set_result(draft)


class _Lookahead(_Call[M]):
    """Drafts for the outcomes of a pass under way."""

    def __init__(
        self, drafter: OnePassDrafter[M], context: Context, draft: Draft, verify_round: int, plan: AheadPlan,
        future: Future[Enumeration],
    ) -> None:
        super().__init__(context, drafter._model.max_tokens)
        self._of = drafter
        self._draft = draft
        self._round = verify_round
        self._plan = plan
        self._future = future
        future.set_running_or_notify_cancel()

    def answer(self, rows: LogitRows, known: Known[M], num_calls: int, seconds: float) -> None:
        of = self._of
        if self._draft.parents is not None:
            check(self._draft.parents)
        narrowed = of._narrowed(rows, known.ids, self.context)
        found = foreseen.branches(
            narrowed.rows, narrowed.text, narrowed.context, narrowed.places(self._draft), self._round, self._plan,
            of._info.tier, of._law_support, of._info.max_context_tokens, of._copies,
        )
        self._future.set_result(Enumeration(
            self._round, tuple(narrowed.branch(branch) for branch in found), of._info.tier, seconds=self.seconds,
            model_seconds=seconds,
        ))

    def fail(self, error: Exception) -> None:
        answer = Enumeration(self._round, tier=self._of._info.tier, seconds=self.seconds)
        match error:
            case PrefixMissing():
                answer = replace(answer, prefix_missing=True)
            case FeaturesMissing():
                pass  # they come with the next round; until then there is nothing to draft from
            case _:
                answer = replace(answer, error=f"{error}")
        self._future.set_result(answer)

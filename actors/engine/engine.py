"""The batched step loop that draft and target share: sequences, their KV, and one packed pass after another."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from actors.engine.jobs import Job, PrefixMissing, SequenceRejected, StaleCall
from actors.engine.kv.copies import parallel_copies
from actors.engine.kv.manager import KVManager
from actors.engine.scheduler import Chunk, plan_chunks
from actors.engine.step import ModelRunner, StepInput
from actors.messages import ReplicaStats
from actors.sampling.validate import BadLogits
from actors.spec import ModelSpec

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Sequence:
    """Everything the engine knows of one sequence. KV of `[0, kv length)` is valid, the rest is to be fed."""

    sequence_id: str
    ids: np.ndarray  # [num_ids] int32: context of the last call and what was fed after it
    num_committed: int = 0
    round: int = -1
    num_cached: int = 0  # tokens found in the prefix cache when it was opened
    job: Job | None = None
    last_used_s: float = field(default_factory=time.monotonic)


class Engine:
    """Continuous batching over one `ModelRunner`, in a thread of its own.

    Calls name the truth: `submit` compares the context with what the sequence holds, truncates KV to the
    common prefix and feeds the rest. `on_closed(sequence_id)` is called from the engine's thread.
    """

    def __init__(
        self,
        runner: ModelRunner,
        spec: ModelSpec,
        max_context_tokens: int,
        on_closed: Callable[[str], None] | None = None,
    ) -> None:
        self.spec = spec
        self.max_context_tokens = max_context_tokens
        self.vocab_size = runner.vocab_size
        num_pages = max(1, spec.kv_tokens // spec.page_tokens)
        self.kv = KVManager(num_pages, spec.page_tokens)
        self._runner = runner
        self._scrub_page = num_pages  # the runner's always-zero page
        self._on_closed = on_closed
        self._sequences: dict[str, Sequence] = {}
        self._copies: list[tuple[int, int]] = []
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self._ended = False  # the thread takes no more commands
        self._next_idle_check_s = 0.0
        self._pressed = False  # KV was full: the oldest call alone runs next, so that it gets on
        self.num_steps = 0
        self.num_rows = 0
        self.forward_s = 0.0
        self._thread = threading.Thread(target=self._loop, name=f"engine-{spec.tier}", daemon=True)
        self._thread.start()

    # Calls from other threads

    def submit(self, job: Job) -> None:
        """Queue a job; its future is resolved by the engine's thread, or fails here once that has ended."""
        self._commands.put(lambda: self._admit(job))
        if self._ended:
            self._drain_commands(block=False)

    def close(self, sequence_id: str) -> None:
        """Forget a sequence and free its pages; unknown ids are ignored."""
        self._commands.put(lambda: self._close(sequence_id))

    def check_integrity(self) -> None:
        """Raise if pages leaked; runs in the engine's thread between steps."""
        done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

        def check() -> None:
            try:
                self.kv.check_integrity()
            except Exception as error:  # handed to the caller's thread
                done.put(error)
            else:
                done.put(None)

        self._commands.put(check)
        error = done.get(timeout=60)
        if error is not None:
            raise error

    def stats(self) -> ReplicaStats:
        """Current counters."""
        return ReplicaStats(
            num_sequences=len(self._sequences),
            num_free_pages=self.kv.num_free,
            num_cached_pages=self.kv.num_cached,
            num_pages=self.kv.num_pages,
            num_steps=self.num_steps,
            num_rows=self.num_rows,
            extra={"forward_s": self.forward_s},
        )

    def shutdown(self) -> None:
        """Stop the thread; pending jobs fail."""

        def stop() -> None:
            self._stopping = True

        self._commands.put(stop)
        self._thread.join(timeout=30)

    # The engine's thread

    def _loop(self) -> None:
        while not self._stopping:
            busy = any(s.job is not None for s in self._sequences.values())
            self._drain_commands(block=not busy)
            self._guarded(self._drop_idle)  # under load too, or what was left behind would fill max_sequences
            if busy:
                self._guarded(self._step)
        for sequence_id in list(self._sequences):
            self._guarded(partial(self._close, sequence_id))
        self._ended = True
        self._drain_commands(block=False)

    def _guarded(self, act: Callable[[], None]) -> None:
        """A fault of ours must not end the thread: every call would hang. What runs fails instead."""
        try:
            act()
        except Exception as error:
            log.exception("the engine failed")
            self._fail_active(error)

    def _fail_active(self, error: Exception) -> None:
        for sequence in self._sequences.values():
            if sequence.job is not None:
                sequence.job.fail(error)
                sequence.job = None
                self.kv.truncate(sequence.sequence_id, 0)

    def _drain_commands(self, *, block: bool) -> None:
        try:
            self._guarded(self._commands.get(timeout=1.0) if block else self._commands.get_nowait())
            while True:
                self._guarded(self._commands.get_nowait())
        except queue.Empty:
            return

    def _drop_idle(self) -> None:
        now = time.monotonic()
        if now < self._next_idle_check_s:
            return
        self._next_idle_check_s = now + min(1.0, self.spec.idle_timeout_s / 2)
        oldest = now - self.spec.idle_timeout_s
        for sequence in list(self._sequences.values()):
            if sequence.job is None and sequence.last_used_s < oldest:
                log.warning("sequence %s idle for too long, freed", sequence.sequence_id)
                self._close(sequence.sequence_id)

    def _admit(self, job: Job) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        if self._stopping:
            job.fail(StaleCall("the engine was shut down"))
            return
        try:
            self._attach(job)
        except (PrefixMissing, StaleCall, SequenceRejected) as error:
            job.fail(error)
        except Exception as error:
            log.exception("a call of sequence %s could not be taken", job.context.sequence_id)
            job.fail(error)

    def _attach(self, job: Job) -> None:
        context = job.context
        draft = job.draft_ids()
        if context.num_tokens == 0:
            raise SequenceRejected("the context is empty; a sequence needs at least one token")
        if context.num_tokens + len(draft) > self.max_context_tokens:
            raise SequenceRejected(
                f"{context.num_tokens + len(draft)} tokens exceed this model's context of {self.max_context_tokens}"
            )
        if context.num_tokens + len(draft) > self.kv.num_pages * self.spec.page_tokens:
            raise SequenceRejected(
                f"{context.num_tokens} tokens exceed the KV memory (kv_tokens={self.spec.kv_tokens})"
            )
        if len(context.tokens) and not 0 <= int(context.tokens.min()) <= int(context.tokens.max()) < self.vocab_size:
            raise SequenceRejected(f"a token id lies outside the vocabulary of {self.vocab_size}")
        sequence = self._sequences.get(context.sequence_id)
        if sequence is None:
            if context.start > 0:
                raise PrefixMissing
            if len(self._sequences) >= self.spec.max_sequences and not self._forget_one_idle():
                raise SequenceRejected(f"this replica already holds max_sequences={self.spec.max_sequences}")
            sequence = Sequence(context.sequence_id, np.empty(0, np.int32))
            sequence.num_cached = self.kv.open(context.sequence_id, context.tokens)
            self._sequences[context.sequence_id] = sequence
        elif context.start > len(sequence.ids):
            raise PrefixMissing
        elif context.round < sequence.round:
            raise StaleCall("a later call of this sequence came first")
        if sequence.job is not None:
            sequence.job.fail(StaleCall("replaced by a later call"))
            sequence.job = None
        ids = np.concatenate([sequence.ids[: context.start], context.tokens, draft]).astype(np.int32)
        self._rewind(sequence, ids, context.num_tokens - 1)
        sequence.ids = ids
        sequence.round = context.round
        sequence.num_committed = context.num_committed
        sequence.last_used_s = time.monotonic()
        job.history_ids = ids[: context.num_tokens]
        job.num_cached_tokens = sequence.num_cached
        job.first_logit_position = context.num_tokens - 1
        job.pending_logits = []
        sequence.job = job

    def _forget_one_idle(self) -> bool:
        """Make room for a sequence. Whoever still wants the forgotten one is told that its prefix is missing.

        A call that arrives after its sequence was closed opens it again, and nobody will close it then.
        """
        idle = [s for s in self._sequences.values() if s.job is None]
        if not idle:
            return False
        victim = min(idle, key=lambda s: s.last_used_s)
        del self._sequences[victim.sequence_id]
        self.kv.release(victim.sequence_id)
        return True

    def _rewind(self, sequence: Sequence, ids: np.ndarray, longest: int) -> None:
        """Truncate KV to what it shares with `ids`, and to `longest` tokens (the next row must be run)."""
        held = self.kv.tokens(sequence.sequence_id)
        n = min(len(held), len(ids), longest)
        same = np.asarray(held[:n], dtype=np.int32) == ids[:n]
        common = n if same.all() else int(np.argmin(same))
        self.kv.truncate(sequence.sequence_id, common)

    def _step(self) -> None:
        active = [s for s in self._sequences.values() if s.job is not None]
        active.sort(key=lambda s: s.job.created_s if s.job is not None else 0.0)  # oldest call first
        ready = self._plan(active[:1] if self._pressed else active)
        self._pressed = bool(active) and not ready
        if not ready:
            self._give_up_one(active)
            return
        step = self._pack(ready)
        started_s = time.monotonic()
        try:
            logits = self._runner.forward(step)
        except Exception as error:
            log.exception("forward pass failed")
            self._copies = [(int(source), int(target)) for source, target in step.copies] + self._copies
            self._fail_active(error)
            return
        self.forward_s += time.monotonic() - started_s
        self.num_steps += 1
        self.num_rows += len(step.input_ids)
        row = 0
        for chunk in ready:
            sequence = self._sequences[chunk.sequence_id]
            self.kv.advance(chunk.sequence_id, sequence.ids[chunk.start : chunk.end])
            self.kv.commit(chunk.sequence_id, min(sequence.num_committed, chunk.end))
            num_logits = self._num_logits(sequence, chunk)
            self._deliver(sequence, logits[row : row + num_logits])
            row += num_logits

    def _plan(self, active: list[Sequence]) -> list[Chunk]:
        """Chunks with room in KV. Those without give their rows to others: perhaps the ones that hold the pages."""
        waiting = {s.sequence_id: s for s in active}
        while waiting:
            chunks = plan_chunks(
                [(i, self.kv.length(i), len(s.ids)) for i, s in waiting.items()], self.spec.max_batch_tokens
            )
            ready = [c for c in chunks if self._reserve(c)]
            if ready or not chunks:
                return ready
            for chunk in chunks:
                del waiting[chunk.sequence_id]
        return []

    def _num_logits(self, sequence: Sequence, chunk: Chunk) -> int:
        if sequence.job is None:
            return 0
        return max(0, chunk.end - max(chunk.start, sequence.job.first_logit_position))

    def _deliver(self, sequence: Sequence, logits: torch.Tensor) -> None:
        job = sequence.job
        if job is None:
            return
        if len(logits):
            job.pending_logits.append(logits)
        if self.kv.length(sequence.sequence_id) < len(sequence.ids):
            return
        rows = job.pending_logits[0] if len(job.pending_logits) == 1 else torch.cat(job.pending_logits)
        job.pending_logits = []
        try:
            next_id = job.on_logits(rows)
        except BadLogits as error:
            self._scrub(sequence)
            job.fail(error)
            next_id = None
        except Exception as error:
            log.exception("sampling failed")
            job.fail(error)
            next_id = None
        sequence.last_used_s = time.monotonic()
        if next_id is None:
            sequence.job = None
            return
        job.first_logit_position = len(sequence.ids)
        sequence.ids = np.append(sequence.ids, np.int32(next_id))

    def _reserve(self, chunk: Chunk) -> bool:
        """Make room for a chunk, taking KV back from idle sequences (least recently used first) if need be."""
        while True:
            copies = self.kv.reserve(chunk.sequence_id, chunk.end)
            if copies is not None:
                self._copies.extend(copies)
                return True
            idle = [
                s for s in self._sequences.values() if s.job is None and self.kv.length(s.sequence_id) > 0
            ]
            if not idle:
                return False
            victim = min(idle, key=lambda s: s.last_used_s)
            self.kv.truncate(victim.sequence_id, 0)  # recomputed when it is next called

    def _give_up_one(self, active: list[Sequence]) -> None:
        """KV is full of running sequences (oldest call first): the youngest starts again later.

        The oldest never gives its pages back, and all others in the end do: so every call ends.
        """
        if not active:
            return
        holders = [s for s in active[1:] if self.kv.length(s.sequence_id) > 0]
        loser = holders[-1] if holders else active[0]
        if loser.job is not None and not holders:
            loser.job.fail(SequenceRejected(f"KV memory is too small (kv_tokens={self.spec.kv_tokens})"))
            loser.job = None
        elif loser.job is not None:
            loser.job.pending_logits = []
        self.kv.truncate(loser.sequence_id, 0)

    def _scrub(self, sequence: Sequence) -> None:
        """NaN keys or values must not reach the pages' next owner (0 * NaN is NaN even where masked)."""
        self._copies.extend((self._scrub_page, page) for page in self.kv.discard(sequence.sequence_id))

    def _close(self, sequence_id: str) -> None:
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            return
        if sequence.job is not None:
            sequence.job.fail(StaleCall("the sequence was closed"))
        self.kv.release(sequence_id)
        if self._on_closed is not None:
            self._on_closed(sequence_id)

    def _pack(self, chunks: list[Chunk]) -> StepInput:
        ids, positions, slots, pages, logit_rows, kv_len, query_len, num_pages = [], [], [], [], [], [], [], []
        row = 0
        for chunk in chunks:
            sequence = self._sequences[chunk.sequence_id]
            size = chunk.end - chunk.start
            ids.append(sequence.ids[chunk.start : chunk.end])
            positions.append(np.arange(chunk.start, chunk.end, dtype=np.int32))
            slots.append(self.kv.slots(chunk.sequence_id, chunk.start, chunk.end))
            held = self.kv.pages(chunk.sequence_id)
            pages.append(held)
            num_pages.append(len(held))
            kv_len.append(chunk.end)
            query_len.append(size)
            num_logits = self._num_logits(sequence, chunk)
            logit_rows.append(np.arange(row + size - num_logits, row + size, dtype=np.int32))
            row += size
        copies = np.array(parallel_copies(self._copies), np.int32).reshape(-1, 2)
        self._copies = []
        return StepInput(
            input_ids=np.concatenate(ids).astype(np.int32),
            positions=np.concatenate(positions),
            slots=np.concatenate(slots).astype(np.int32),
            cu_query=np.cumsum([0, *query_len]).astype(np.int32),
            kv_len=np.array(kv_len, np.int32),
            pages=np.concatenate(pages).astype(np.int32),
            cu_pages=np.cumsum([0, *num_pages]).astype(np.int32),
            logit_rows=np.concatenate(logit_rows),
            copies=copies,
        )

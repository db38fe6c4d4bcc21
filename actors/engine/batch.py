"""Continuous batching without threads: sequences, their KV, and one packed pass after another."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from actors.engine.jobs import Job, PrefixMissing, ReplicaFull, SequenceRejected, StaleCall
from actors.engine.kv.manager import KVManager
from actors.engine.packing import Part, pack
from actors.engine.planner import Planner
from actors.engine.preemption import RESTING_S, Preemption
from actors.engine.scheduler import Chunk, Scheduler
from actors.engine.sequences import Sequence, SequenceTable
from actors.engine.step import ModelRunner
from actors.messages import Ids
from actors.sampling.rows import LogitRows, concat
from actors.sampling.validate import BadLogits
from actors.spec import ModelSpec

log = logging.getLogger(__name__)


class Batch:
    """Takes calls, runs them in steps, answers them. For one thread only.

    `on_closed(sequence_id)` is called when a sequence ends, whoever ended it.
    """

    def __init__(
        self, runner: ModelRunner, spec: ModelSpec, max_context_tokens: int,
        on_closed: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        num_pages = max(1, spec.kv_tokens // spec.page_tokens)
        self.kv = KVManager(num_pages, spec.page_tokens)
        self._table = SequenceTable(self.kv, spec, max_context_tokens, runner.vocab_size, clock)
        self._planner = Planner(
            self.kv, self._table, Scheduler(spec.max_batch_tokens, spec.prefill_rows),
            Preemption(min(RESTING_S, spec.idle_timeout_s / 2)), clock,
        )
        self._runner = runner
        self._scrub_page = num_pages  # the runner's always-zero page
        self._idle_timeout_s = spec.idle_timeout_s
        self._on_closed = on_closed
        self._clock = clock
        self.num_steps = 0
        self.num_rows = 0
        self.forward_s = 0.0

    @property
    def sequence_ids(self) -> list[str]:
        """Open sequences."""
        return [s.sequence_id for s in self._table]

    @property
    def num_sequences(self) -> int:
        """Number of open sequences."""
        return len(self._table)

    @property
    def num_active(self) -> int:
        """Calls under way."""
        return len(self._table.active)

    @property
    def num_preemptions(self) -> int:
        """How often a sequence's pages were taken for another."""
        return self._planner.num_preemptions

    def attach(self, job: Job) -> None:
        """Take a call; one that cannot be taken fails."""
        try:
            self._table.attach(job)
        except (PrefixMissing, StaleCall, SequenceRejected, ReplicaFull) as error:
            job.fail(error)
        except Exception as error:
            log.exception("a call of sequence %s could not be taken", job.context.sequence_id)
            job.fail(error)

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Forget a sequence and free its pages; unknown ids are ignored. `truth`: see `SequenceTable.close`."""
        if self._table.close(sequence_id, truth) and self._on_closed is not None:
            self._on_closed(sequence_id)

    def close_idle(self) -> None:
        """Close the sequences that nobody has called for `idle_timeout_s`."""
        for sequence in self._table.idle(self._idle_timeout_s):
            log.warning("sequence %s idle for too long, freed", sequence.sequence_id)
            self.close(sequence.sequence_id)

    def fail_all(self, error: Exception) -> None:
        """Fail the calls under way; what their sequences hold is in doubt and dropped."""
        for sequence in list(self._table.active.values()):
            assert sequence.job is not None
            sequence.job.fail(error)
            self._table.detach(sequence)
            self.kv.truncate(sequence.sequence_id, 0)

    def step(self) -> bool:
        """One packed pass over the calls under way; False if there is none that can run now."""
        chunks = self._planner.plan()
        if not chunks:
            return False
        parts = [self._part(chunk) for chunk in chunks]
        step = pack(parts, self.kv.page_tokens, self._planner.copies)
        began_s = time.monotonic()
        try:
            logits = self._runner.forward(step)
        except Exception as error:
            log.exception("forward pass failed")
            self.fail_all(error)
            return True  # the page copies are still to be made
        seconds = time.monotonic() - began_s
        self._planner.copies = []
        self.forward_s += seconds
        self.num_steps += 1
        self.num_rows += len(step.input_ids)
        rows = LogitRows(logits)
        first = 0
        for chunk, part in zip(chunks, parts, strict=True):
            sequence = self._table[chunk.sequence_id]
            self._advance(sequence, part, len(step.input_ids), seconds)
            self._deliver(sequence, rows.part(first, first + part.num_logits))
            first += part.num_logits
        return True

    def _part(self, chunk: Chunk) -> Part:
        sequence = self._table[chunk.sequence_id]
        assert sequence.job is not None
        num_logits = max(0, chunk.end - max(chunk.start, sequence.job.first_logit))
        ids = sequence.ids.view(chunk.start, chunk.end)
        return Part(ids, chunk.start, self.kv.pages(chunk.sequence_id), num_logits)

    def _advance(self, sequence: Sequence, part: Part, pass_rows: int, seconds: float) -> None:
        end = part.start + len(part.ids)
        self.kv.advance(sequence.sequence_id, part.ids)
        self.kv.commit(sequence.sequence_id, min(sequence.num_committed, end))
        sequence.has_run = True
        if sequence.job is not None:
            sequence.job.model_seconds += seconds
            sequence.job.pass_rows, sequence.job.pass_seconds = pass_rows, seconds

    def _deliver(self, sequence: Sequence, logits: LogitRows) -> None:
        """Give a call its logits, once all of them are there."""
        job = sequence.job
        if job is None:
            return
        is_last = self.kv.length(sequence.sequence_id) == len(sequence.ids)
        if job.pending or not is_last:
            if len(logits):
                job.pending.append(concat([logits]))  # a copy: it outlives the step
            if not is_last:
                return
            logits = concat(job.pending)
            job.pending = []
        try:
            next_id = job.on_logits(logits, sequence.ids.view(0, job.first_logit + 1))
        except BadLogits as error:
            self._scrub(sequence)
            job.fail(error)
            next_id = None
        except Exception as error:
            log.exception("sampling failed")
            job.fail(error)
            next_id = None
        if next_id is None:
            self._commit_decided(sequence, job)
            self._table.detach(sequence)
        else:
            job.first_logit = len(sequence.ids)
            sequence.ids.extend((next_id,))

    def _commit_decided(self, sequence: Sequence, job: Job) -> None:
        """What the call has decided may be found by later prompts, even if this was the sequence's last call."""
        num_tokens = min(job.num_decided, self.kv.length(sequence.sequence_id))
        if num_tokens > sequence.num_committed:
            self.kv.commit(sequence.sequence_id, num_tokens)

    def _scrub(self, sequence: Sequence) -> None:
        """NaN keys or values must not reach the pages' next owner (0 * NaN is NaN even where masked)."""
        self._planner.copies.extend((self._scrub_page, page) for page in self.kv.discard(sequence.sequence_id))

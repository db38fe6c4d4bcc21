"""Continuous batching without threads: sequences, their KV, and one packed pass after another."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import numpy as np

from actors.engine.features import FeaturesMissing, reach, share_of
from actors.engine.jobs import Job, PrefixMissing, ReplicaFull, SequenceRejected, StaleCall, TimeUp
from actors.engine.kv.manager import KVManager
from actors.engine.packing import Part, pack
from actors.engine.planner import Planner
from actors.engine.preemption import RESTING_S, Preemption
from actors.engine.scheduler import Chunk, Scheduler
from actors.engine.sequences import Sequence, SequenceTable, is_branch
from actors.engine.shallow import LayersUnrun, Shallow
from actors.engine.step import (
    Best,
    Decodes,
    FindsBest,
    Int32s,
    KeepsFeatures,
    KnowsPart,
    ModelRunner,
    StepInput,
    TakesFeatures,
)
from actors.messages import Context, Halves, Ids
from actors.sampling.rows import LogitRows, concat
from actors.sampling.validate import BadLogits, check_best
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
        self._table = SequenceTable(
            self.kv, spec, max_context_tokens, runner.vocab_size, clock,
            takes_features=isinstance(runner, TakesFeatures) and runner.features_taken > 0,
        )
        self._planner = Planner(
            self.kv, self._table, partial(Scheduler, spec.max_batch_tokens, spec.prefill_rows),
            Preemption(min(RESTING_S, spec.idle_timeout_s / 2)), clock,
        )
        self._runner = runner
        self._known_ids = runner.known_ids if isinstance(runner, KnowsPart) else None
        self._width_taken = runner.features_taken if isinstance(runner, TakesFeatures) else 0
        self._finder = runner if isinstance(runner, FindsBest) else None
        self._decoder = runner if isinstance(runner, Decodes) and runner.decodes and not self._width_taken else None
        self.stop = np.zeros(1, np.int32)  # set to 1 by any thread: calls wait, so make no more passes at once
        self._keeper = runner if isinstance(runner, KeepsFeatures) and runner.features_kept else None
        self._moves: list[Int32s] = []  # of tokens of verified trees, to be made at the beginning of the next pass
        self._scrub_page = num_pages  # the runner's always-zero page
        self._idle_timeout_s = spec.idle_timeout_s
        self._on_closed = on_closed
        self._clock = clock
        self.num_steps = self.num_shallow_steps = 0  # the latter: of these, through some of the layers
        self.num_rows = 0
        self.forward_s = 0.0
        self._pass_began_s = self.pass_ended_s = 0.0  # of the latest one, monotonic
        self.at_last = False  # the last of the calls that a pass was for is being given its logits
        self._pass_s, self._pass_sequences = 0.0, 0  # what it took (of several at once each), for how many
        self.computing: AbstractContextManager[object] = nullcontext()  # around each pass

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
        """Calls under way, those on branches included."""
        return len(self._table.active)

    @property
    def num_calls(self) -> int:
        """Calls under way that somebody outside made; may be asked from other threads."""
        return sum(not is_branch(sequence_id) for sequence_id in list(self._table.active))

    @property
    def num_expected(self) -> int:
        """Sequences that the last pass has answered, and that have not called since."""
        return sum(1 for s in self._table if s.job is None and s.has_run and s.last_used_s >= self.pass_ended_s)

    @property
    def num_preemptions(self) -> int:
        """How often a sequence's pages were taken for another."""
        return self._planner.num_preemptions

    def attach(self, job: Job) -> None:
        """Take a call; one that cannot be taken fails."""
        if not job.model_seconds:  # it may have come while a pass was under way
            job.model_seconds = max(0.0, self.pass_ended_s - max(self._pass_began_s, job.created_s))
        try:
            self._table.attach(job)
            self._attach_spawned(job)
        except (PrefixMissing, StaleCall, SequenceRejected, ReplicaFull) as error:
            job.fail(error)
        except Exception as error:
            log.exception("a call of sequence %s could not be taken", job.context.sequence_id)
            job.fail(error)

    def expect(self, context: Context) -> None:
        """A call with this context is to come. Whatever is wrong with it is said when it has come."""
        try:
            self._table.expect(context)
        except SequenceRejected:
            return
        except Exception:  # a fault of ours, which is not to touch the calls under way
            log.exception("a call of sequence %s could not be expected", context.sequence_id)

    def _attach_spawned(self, job: Job) -> None:
        spawned, job.spawned = job.spawned, []
        for branch_job in spawned:
            branch_job.shallow = job.shallow
            self.attach(branch_job)

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
        self.at_last = False  # whatever broke may have broken in the middle of a step's calls
        for sequence in list(self._table.active.values()):
            assert sequence.job is not None
            sequence.job.fail(error)
            self._table.detach(sequence)
            self.kv.truncate(sequence.sequence_id, 0)
        for branch in self._table.branches:
            self._table.end_branch(branch, error)
        if self._moves:  # made or not, nobody knows
            self.kv.distrust(np.concatenate(self._moves)[:, 1])
            self._moves = []

    def _end_overdue(self) -> None:
        """Calls whose time is over answer with what they have."""
        timed = [s for s in self._table.active.values() if s.job is not None and s.job.deadline_s is not None]
        now_s = time.monotonic() if timed else 0.0
        for sequence in timed:
            job = sequence.job
            if job is not None and job.deadline_s is not None and job.deadline_s <= now_s:
                job.fail(TimeUp())
                self._table.detach(sequence)

    def _end_unfounded(self) -> None:
        """Shallow calls end where tokens before their own have no KV (yet, or any more: it was taken for others)."""
        for sequence in [s for s in self._table.active.values() if s.job is not None and s.job.shallow is not None]:
            job = sequence.job
            if job is not None and self.kv.length(sequence.sequence_id) < (sequence.num_whole or 0):
                job.fail(LayersUnrun())
                self._table.detach(sequence)

    def step(self) -> bool:
        """One packed pass over the calls under way; False if there is none that can run now."""
        self._end_overdue()
        self._end_unfounded()
        chunks = self._planner.plan()
        if not chunks:
            return False
        chunks = self._fed(chunks)
        if not chunks:
            return True
        num_passes = self._num_passes(chunks)
        parts = [self._part(chunk) for chunk in chunks]
        step = pack(parts, self.kv.page_tokens, self._planner.copies, self._moves)
        first_job = self._table[chunks[0].sequence_id].job
        shallow = None if first_job is None else first_job.shallow  # of all of them: see `Planner.plan`
        if shallow is not None:
            step = replace(step, layers=shallow.layers, wants_hidden=shallow.exit is not None)
        self._pass_began_s = began_s = time.monotonic()
        found: LogitRows | Best
        try:
            with self.computing:
                if num_passes > 1:
                    assert self._decoder is not None
                    found = self._decoder.decode(step, num_passes, self.stop)
                    num_passes = len(found.ids)
                else:
                    found = self._rows(step, shallow)
        except Exception as error:
            log.exception("forward pass failed")
            self.fail_all(error)
            return True  # the page copies are still to be made
        self.pass_ended_s = time.monotonic()
        seconds = self.pass_ended_s - began_s
        self._pass_s, self._pass_sequences = seconds / num_passes, len(chunks)
        for active in self._table.active.values():
            assert active.job is not None
            active.job.model_seconds += seconds
        self._planner.copies, self._moves = [], []
        self.forward_s += seconds
        self.num_steps += num_passes
        self.num_shallow_steps += shallow is not None
        num_rows = len(step.input_ids)
        self.num_rows += num_rows + (num_passes - 1) * len(chunks)
        first = 0
        jobs = [self._table[chunk.sequence_id].job for chunk in chunks]
        for index, (chunk, part) in enumerate(zip(chunks, parts, strict=True)):
            if chunk.sequence_id in self._table:  # not a branch that ended a moment ago
                sequence = self._table[chunk.sequence_id]
                self._advance(sequence, part, num_rows, seconds / num_passes)
                self.at_last = index == len(parts) - 1
                if isinstance(found, Best):
                    self._deliver_best(sequence, found.ids[:, index].tolist(), float(found.tops[-1, index]))
                else:
                    self._deliver(sequence, found.part(first, first + part.num_logits), part.parents is not None)
            first += part.num_logits
        self.at_last = False
        for job in jobs:
            if job is not None and job.spawned:
                self._attach_spawned(job)
        return True

    def _rows(self, step: StepInput, shallow: Shallow | None) -> LogitRows:
        """The logits of one pass."""
        logits = self._runner.forward(step)
        if shallow is None:
            best = None if self._finder is None else self._finder.best
            return LogitRows(logits, self._known_ids, None if best is None else (best.ids, best.tops))
        if shallow.exit is None:
            return LogitRows(logits, self._known_ids)
        return LogitRows(shallow.exit(logits), shallow.known_ids)

    def _num_passes(self, chunks: list[Chunk]) -> int:
        """How many passes may be made at once, with the pages for them reserved: as many as every call wants."""
        if self._decoder is None or self._known_ids is not None or self._moves or self.stop[0]:
            return 1
        wanted = []
        for chunk in chunks:
            sequence = self._table[chunk.sequence_id]
            job = sequence.job
            assert job is not None
            if job.pending or chunk.end < len(sequence.ids) or job.first_logit < chunk.end - 1:
                return 1
            if job.shallow is not None:
                return 1
            wanted.append(job.num_greedy())
            if job.deadline_s is not None and math.isfinite(job.deadline_s):
                # None is to begin after it, if they take as long as the latest one; one of fewer sequences took less.
                left_s, is_known = job.deadline_s - time.monotonic(), self._pass_sequences >= len(chunks)
                wanted.append(math.ceil(left_s / self._pass_s) if is_known and self._pass_s else 1)
        num_passes = min(wanted)
        if num_passes < 2 or self.kv.num_free < len(chunks) * (1 + num_passes // self.kv.page_tokens):
            return 1
        for chunk in chunks:
            copies = self.kv.reserve(chunk.sequence_id, chunk.end + num_passes - 1)
            if copies is None:
                return 1
            self._planner.copies.extend(copies)
        return num_passes

    def _part(self, chunk: Chunk) -> Part:
        sequence = self._table[chunk.sequence_id]
        assert sequence.job is not None
        num_logits = max(0, chunk.end - max(chunk.start, sequence.job.first_logit))
        ids = sequence.ids.view(chunk.start, chunk.end)
        given = share_of(sequence.job.context.features, chunk.start, chunk.end) if self._width_taken else None
        parents = _parents(sequence.job, chunk)
        return Part(ids, chunk.start, self.kv.pages(chunk.sequence_id), num_logits, parents, given)

    def _fed(self, chunks: list[Chunk]) -> list[Chunk]:
        """The chunks as far as the features that their rows read are there; calls that lack them have failed."""
        if not self._width_taken:
            return chunks
        fed = []
        for chunk in chunks:
            sequence = self._table[chunk.sequence_id]
            assert sequence.job is not None
            try:
                fed.append(replace(chunk, end=self._reach(sequence, sequence.job, chunk)))
            except (FeaturesMissing, SequenceRejected) as error:
                sequence.job.fail(error)
                self._table.detach(sequence)
        return fed

    def _reach(self, sequence: Sequence, job: Job, chunk: Chunk) -> int:
        """Where the rows of a chunk end that can be run with the features that come with it, of which note is taken.

        Raises `FeaturesMissing`, `SequenceRejected`.
        """
        given = job.context.features
        if given is not None and (given.start < 0 or given.rows.ndim != 2 or given.rows.shape[1] != self._width_taken):
            raise SequenceRejected(
                f"the features have the shape {given.rows.shape} from position {given.start} on, this drafter takes "
                f"rows of {self._width_taken}: run the target with the drafter's feature_layers"
            )
        held = min(sequence.num_given, chunk.start)
        found = reach(chunk.start, chunk.end, sequence.num_covered, held, given)
        if found.end < chunk.end and job.draft_parents() is not None and chunk.end > job.context.num_tokens:
            raise FeaturesMissing(held)  # a tree is run in one pass
        sequence.num_whole = sequence.whole(found.num_known + 1)
        sequence.num_given = min(found.num_known, found.end)
        return found.end

    def _advance(self, sequence: Sequence, part: Part, pass_rows: int, seconds: float) -> None:
        end = part.start + len(part.ids)
        self.kv.advance(sequence.sequence_id, part.ids)
        self.kv.commit(sequence.sequence_id, sequence.shareable(min(sequence.num_committed, end)))
        sequence.has_run = True
        if sequence.job is not None:
            sequence.job.pass_rows, sequence.job.pass_seconds = pass_rows, seconds

    def _deliver(self, sequence: Sequence, logits: LogitRows, is_tree: bool) -> None:
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
        if self._keeper is not None:
            job.read_features = partial(self._features, self._keeper, sequence.sequence_id)
        history = sequence.ids.view(0, job.first_logit + 1)
        next_id = self._decided(sequence, job, lambda: job.on_logits(logits, history))
        if is_tree:
            self._prune(sequence, job)
        self._go_on(sequence, job, next_id)

    def _deliver_best(self, sequence: Sequence, ids: list[int], top: float) -> None:
        """Give a call the likeliest ids of several passes; `top` is the logit of the last one."""
        job = sequence.job
        if job is None:
            return
        self.kv.advance(sequence.sequence_id, ids[:-1])
        sequence.ids.extend(ids[:-1])

        def decide() -> int | None:
            check_best(top)
            return job.on_best(ids)

        self._go_on(sequence, job, self._decided(sequence, job, decide))

    def _decided(self, sequence: Sequence, job: Job, decide: Callable[[], int | None]) -> int | None:
        """What a call decides; one whose logits are bad, or that breaks, has failed and decides nothing more."""
        try:
            return decide()
        except BadLogits as error:
            self._scrub(sequence)
            job.fail(error)
        except Exception as error:
            log.exception("sampling failed")
            job.fail(error)
        return None

    def _go_on(self, sequence: Sequence, job: Job, next_id: int | None) -> None:
        """Feed the id that a call wants to run next; without one the call has ended."""
        if next_id is None:
            self._commit_decided(sequence, job)
            self._table.detach(sequence)
        else:
            job.first_logit = len(sequence.ids)
            sequence.ids.extend((next_id,))

    def _features(self, keeper: KeepsFeatures, sequence_id: str, places: Int32s) -> Halves:
        """What the runner keeps beside the KV of these places in a sequence's pages, [len(places), width]."""
        length = self.kv.length(sequence_id)
        return keeper.features_at(self.kv.slots(sequence_id, 0, length)[places])

    def _prune(self, sequence: Sequence, job: Job) -> None:
        """Nothing of a tree stays but the path that its call keeps, which is from now on as if fed as a chain."""
        num_kept = job.context.num_tokens
        if self.kv.length(sequence.sequence_id) < num_kept:  # discarded
            sequence.ids.cut(num_kept)
            return
        moves = self.kv.prune(sequence.sequence_id, num_kept, job.path)
        if len(moves):
            self._moves.append(moves)
        kept = sequence.ids.view(num_kept)[list(job.path)]
        sequence.ids.cut(num_kept)
        sequence.ids.extend(kept)

    def _commit_decided(self, sequence: Sequence, job: Job) -> None:
        """What the call has decided may be found by later prompts, even if this was the sequence's last call."""
        num_tokens = min(job.num_decided, sequence.shareable(self.kv.length(sequence.sequence_id)))
        if num_tokens > sequence.num_committed:
            self.kv.commit(sequence.sequence_id, num_tokens)

    def _scrub(self, sequence: Sequence) -> None:
        """NaN keys or values must not reach the pages' next owner (0 * NaN is NaN even where masked)."""
        for branch in list(sequence.branches):
            self._table.end_branch(branch, BadLogits("the sequence's keys or values are bad"))
        self._planner.copies.extend((self._scrub_page, page) for page in self.kv.discard(sequence.sequence_id))


def _parents(job: Job, chunk: Chunk) -> Int32s | None:
    """Parents of a chunk's rows if a tree is among them: context first, then the nodes."""
    nodes = job.draft_parents()
    num_context = job.context.num_tokens - chunk.start
    if nodes is None or chunk.num_rows <= num_context:
        return None
    return np.concatenate([np.arange(-1, num_context - 1), nodes + num_context]).astype(np.int32)

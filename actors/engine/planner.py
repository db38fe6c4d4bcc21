"""The next step: rows from the scheduler, pages from KV memory, taken back from others where that is right."""

from __future__ import annotations

from collections.abc import Callable

from actors.engine.jobs import ReplicaFull, SequenceRejected
from actors.engine.kv.manager import KVManager
from actors.engine.kv.table import pages_for
from actors.engine.preemption import Holder, Preemption
from actors.engine.scheduler import Backlog, Chunk, Scheduler
from actors.engine.sequences import Sequence, SequenceTable
from actors.engine.shallow import WHOLE_COST, Shallow, Turns

EXPECTED_S = 1.0  # a sequence that was answered so recently will soon call again, so steps are kept short for it


class Planner:
    """Finds the chunks of each step and reserves their pages."""

    def __init__(
        self, kv: KVManager, table: SequenceTable, make_scheduler: Callable[[], Scheduler], preemption: Preemption,
        clock: Callable[[], float],
    ) -> None:
        self._kv = kv
        self._table = table
        self._make_scheduler = make_scheduler
        self._schedulers: dict[Shallow | None, Scheduler] = {}  # of each kind of pass (None: through all layers)
        self._turns = Turns()
        self._preemption = preemption
        self._clock = clock
        self.copies: list[tuple[int, int]] = []  # pages to be copied before the next pass (copy on write, scrubbing)
        self.num_preemptions = 0  # sequences whose pages were taken

    def plan(self) -> list[Chunk]:
        """Chunks that can run, with their pages reserved; none if every call must wait for memory.

        All of them belong to calls that want the same kind of pass.
        """
        self._shed_branches()
        waiting = sorted(self._table.active.values(), key=lambda s: s.age)
        if self._is_tight(waiting):
            waiting = self._may_run(waiting)
        self._find_cached(waiting)
        while waiting:
            kinds = {kind: WHOLE_COST if kind is None else kind.cost for kind in map(_kind, waiting)}
            turn = self._turns.order(kinds)[0]
            backlogs = [self._backlog(s) for s in waiting if _kind(s) is turn]
            if (scheduler := self._schedulers.get(turn)) is None:
                scheduler = self._schedulers[turn] = self._make_scheduler()
            planned = scheduler.plan(backlogs, more_expected=len(kinds) > 1 or self._more_expected(backlogs))
            # Oldest first: who is robbed to make room has not been given anything in this step yet.
            planned.sort(key=lambda chunk: self._table[chunk.sequence_id].age)
            ready = [chunk for chunk in planned if self._reserve(chunk)]
            if ready:
                scheduler.charge(ready)
                self._turns.charge(turn)
                return ready
            # Without pages they give their rows to others: perhaps the ones that hold the pages.
            refused = {chunk.sequence_id for chunk in planned}
            waiting = [s for s in waiting if s.sequence_id not in refused]
        return []

    def preempt(self, sequence: Sequence) -> None:
        """Take all pages of a sequence; its call, if one is under way, starts again later."""
        self._kv.truncate(sequence.sequence_id, 0)
        if sequence.job is not None:
            sequence.job.pending = []
        self.num_preemptions += 1

    def _shed_branches(self) -> None:
        """When memory is tight branches go first, as many as it takes: they only guess, and never take anybody's pages.

        So a step that must look for memory at all is planned as if branches did not exist.
        """
        for branch in self._table.branches:
            if not self._is_tight(list(self._table.active.values())):
                return
            self._table.end_branch(branch, ReplicaFull("KV memory is needed for sequences; raise kv_tokens"))

    def _is_tight(self, active: list[Sequence]) -> bool:
        """Whether memory might not hold what all calls need: the pages of their rows, begun ones, and copies."""
        num_rows = sum(len(s.ids) - self._kv.length(s.sequence_id) for s in active)
        return self._kv.num_free < num_rows // self._kv.page_tokens + 2 * len(active)

    def _may_run(self, active: list[Sequence]) -> list[Sequence]:
        """Of `active`, oldest first, those that have begun, and those whose whole call finds room.

        A call that began without room for its end would only hold pages that older ones want. One that has
        outgrown the whole memory fails.
        """
        holders = self._holders()
        free = self._kv.num_free
        chosen = []
        for sequence in active:
            num_held = len(self._kv.pages(sequence.sequence_id))
            num_pages = pages_for(len(sequence.ids), self._kv.page_tokens)
            if num_pages > self._kv.num_pages:
                self._fail(sequence)
                continue
            needed = num_pages - num_held
            if num_held == 0 and needed > free + self._preemption.takeable(sequence.age, holders):
                continue
            free -= needed
            chosen.append(sequence)
        return chosen

    def _find_cached(self, active: list[Sequence]) -> None:
        """Let sequences that hold nothing begin with what the prefix cache has (of others, or of themselves)."""
        for sequence in active:
            if self._kv.length(sequence.sequence_id) or sequence.job is None:
                continue
            self._kv.release(sequence.sequence_id)
            num_found = self._kv.open(sequence.sequence_id, sequence.ids.view(0, sequence.job.first_logit + 1))
            sequence.num_given = num_found
            if not sequence.has_run:
                sequence.num_cached = sequence.job.num_cached_tokens = num_found

    def _backlog(self, sequence: Sequence) -> Backlog:
        job = sequence.job
        assert job is not None
        start = self._kv.length(sequence.sequence_id)
        whole_from = None if job.draft_parents() is None else job.context.num_tokens
        return Backlog(sequence.sequence_id, start, len(sequence.ids), job.first_logit, job.arrival, whole_from)

    def _more_expected(self, backlogs: list[Backlog]) -> bool:
        if not any(b.is_prefill for b in backlogs):
            return False
        since = self._clock() - EXPECTED_S
        return any(s.job is None and s.has_run and s.last_used_s >= since for s in self._table)

    def _reserve(self, chunk: Chunk) -> bool:
        """Pages for a chunk, taken from others if need be and right."""
        if self._kv.length(chunk.sequence_id) != chunk.start:
            return False  # it was robbed a moment ago
        copies = self._kv.reserve(chunk.sequence_id, chunk.end)
        if copies is None:
            self._make_room(chunk)
            copies = self._kv.reserve(chunk.sequence_id, chunk.end)
        if copies is None:
            return False
        self.copies.extend(copies)
        return True

    def _make_room(self, chunk: Chunk) -> None:
        num_held = len(self._kv.pages(chunk.sequence_id))
        # One more than the rows fill: its last page may be shared, and must then be copied.
        needed = pages_for(chunk.end, self._kv.page_tokens) - num_held + 1 - self._kv.num_free
        age = self._table[chunk.sequence_id].age
        holders = self._holders()
        victims = self._preemption.victims(age, holders, needed) or self._preemption.victims(age, holders, needed - 1)
        for victim in victims:
            self.preempt(self._table[victim.sequence_id])

    def _holders(self) -> list[Holder]:
        now = self._clock()
        return [
            Holder(s.sequence_id, s.age, num_pages, now - s.last_used_s if s.job is None else None)
            for s in self._table
            if (num_pages := len(self._kv.pages(s.sequence_id))) > 0
        ]

    def _fail(self, sequence: Sequence) -> None:
        """A call that no waiting helps."""
        assert sequence.job is not None
        capacity = self._kv.num_pages * self._kv.page_tokens
        sequence.job.fail(
            SequenceRejected(f"KV memory is too small for {len(sequence.ids)} tokens (kv_tokens={capacity})")
        )
        self._table.detach(sequence)
        self._kv.truncate(sequence.sequence_id, 0)


def _kind(sequence: Sequence) -> Shallow | None:
    """Which passes the sequence's call wants."""
    assert sequence.job is not None
    return sequence.job.shallow

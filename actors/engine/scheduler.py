"""Which rows run in the next step: pure logic over backlogs, knowing neither KV nor tensors.

Two classes of rows share a step. *Running* ones (decode, verify) are few per call and somebody waits for
each of them; *prefill* is long and can be cut. Running rows come first, and while there are any, prefill
gets at most `prefill_tokens` rows a step: that bounds how long a step takes, whatever prompts arrive. The
same rows are kept for it when running rows alone would fill the step: neither class starves the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CATCH_UP_ROWS = 32  # a call with at most so many rows before its first logits is running, with more it is prefill


@dataclass(frozen=True, slots=True)
class Backlog:
    """What one call still has to run: positions `[start, end)` of its sequence."""

    sequence_id: str
    start: int
    end: int
    first_logit: int  # logits are wanted from this position on
    arrival: int  # order of the calls
    whole_from: int | None = None  # from this position on, rows must run in one and the same step; None: anywhere

    def cut(self, num_rows: int) -> int:
        """Rows that run of it in a step that has room for `num_rows`."""
        if num_rows >= self.num_rows:
            return self.num_rows
        if self.whole_from is not None:
            num_rows = min(num_rows, max(0, self.whole_from - self.start))
        return num_rows

    @property
    def num_rows(self) -> int:
        """Rows to run."""
        return self.end - self.start

    @property
    def is_prefill(self) -> bool:
        """Whether most of it is context that must be computed before anything can be decided."""
        return self.first_logit - self.start > CATCH_UP_ROWS


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions `[start, end)` of one sequence, to be run in one step."""

    sequence_id: str
    start: int
    end: int

    @property
    def num_rows(self) -> int:
        """Rows it takes."""
        return self.end - self.start


class FairShare:
    """Splits the rows of one class among its calls, without memory while there are enough for all.

    When rows are short, calls within the fair share (the level up to which all demands can be filled alike:
    max-min fairness) are served whole. The larger ones take turns with what is left, so that none is cut
    into more pieces than it must: a call that has had rows is due again once the others, at an equal rate,
    have had as many (weighted fair queueing, Demers, Keshav, Shenker 1989). Among those that are due the
    oldest call comes first, so every call is served in the end.

    Rows that must not be cut (`Backlog.whole_from`) may find too little left when their turn has come; in the next
    split they go before the small ones. There must not be more of them than the class ever has.
    """

    def __init__(self) -> None:
        self._large: list[str] = []  # sequences that took turns in the last split
        self._now = 0.0  # rows that each of the larger calls has had since rows became short
        self._passed_over: str | None = None  # the sequence whose turn it was in the last split, and that had no rows
        self._due: dict[str, float] = {}  # sequence -> when its next turn is due; absent: now

    def split(self, backlogs: Sequence[Backlog], num_rows: int) -> list[Chunk]:
        """At most `num_rows` rows of `backlogs`, each from its start on; those without rows are left out."""
        self._large = []
        passed_over, self._passed_over = self._passed_over, None
        if sum(b.num_rows for b in backlogs) <= num_rows:
            return [Chunk(b.sequence_id, b.start, b.end) for b in backlogs]
        level = fair_level([b.num_rows for b in backlogs], num_rows)
        small = [b for b in backlogs if b.num_rows <= level]
        large = [b for b in backlogs if b.num_rows > level]
        self._large = [b.sequence_id for b in large]
        large.sort(key=lambda b: (max(self._due.get(b.sequence_id, 0.0), self._now), b.arrival))
        chunks = []
        due, *others = large
        order = (due, *small, *others) if due.sequence_id == passed_over else (*small, *large)
        for backlog in order:
            size = backlog.cut(num_rows)
            if size == 0:
                if backlog is due:
                    self._passed_over = due.sequence_id
                continue
            chunks.append(Chunk(backlog.sequence_id, backlog.start, backlog.start + size))
            num_rows -= size
        return chunks

    def charge(self, served: Iterable[Chunk]) -> None:
        """Note what was really run of the last split."""
        if not self._large:
            self._now, self._due = 0.0, {}
            return
        rows = {chunk.sequence_id: chunk.num_rows for chunk in served}
        turns = {sequence_id: rows[sequence_id] for sequence_id in self._large if sequence_id in rows}
        for sequence_id, size in turns.items():
            self._due[sequence_id] = max(self._due.get(sequence_id, 0.0), self._now) + size
        self._now += sum(turns.values()) / len(self._large)
        self._due = {sequence_id: due for sequence_id, due in self._due.items() if due > self._now}


def fair_level(sizes: Sequence[int], total: int) -> int:
    """The largest number of rows that all `sizes` could be filled up to alike with `total` rows, rounded down."""
    left = total
    for index, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - index)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


class Scheduler:
    """Plans steps of at most `max_rows` rows, of which prefill gets `prefill_rows` while others run.

    After `plan`, `charge` tells it what was run of the plan: a call whose chunk found no memory was not served.
    """

    def __init__(self, max_rows: int, prefill_rows: int) -> None:
        if not 1 <= prefill_rows < max_rows:
            raise ValueError(
                f"prefill_tokens is {prefill_rows} of max_batch_tokens {max_rows}: leave at least one row to either"
            )
        self._max_rows = max_rows
        self._prefill_rows = prefill_rows
        self._running = FairShare()
        self._prefill = FairShare()

    def plan(self, backlogs: Sequence[Backlog], *, more_expected: bool = False) -> list[Chunk]:
        """Chunks of one step. `more_expected`: running calls will come back at any moment, so keep it short."""
        running = [b for b in backlogs if not b.is_prefill]
        prefill = [b for b in backlogs if b.is_prefill] if len(running) < len(backlogs) else []
        budget = self._prefill_rows if running or more_expected else self._max_rows
        kept = min(budget, sum(b.num_rows for b in prefill)) if running else 0
        chunks = self._running.split(running, self._max_rows - kept)
        left = self._max_rows - sum(chunk.num_rows for chunk in chunks)
        return chunks + self._prefill.split(prefill, min(budget, left))

    def charge(self, served: Sequence[Chunk]) -> None:
        """What was run of the last plan."""
        self._running.charge(served)
        self._prefill.charge(served)

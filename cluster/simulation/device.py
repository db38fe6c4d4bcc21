"""A device that only takes time: one forward pass after another, each with rows of all the work that waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from actors.emulation.pace import Pace
from cluster.simulation.clock import VirtualLoop


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass that was run."""

    begin_s: float
    seconds: float
    rows: int


@dataclass(eq=False, slots=True)
class Work:
    """A call on its way through a device: `rows[i]` rows in its i-th pass, each pass after the one before."""

    rows: Sequence[int]
    done: Callable[[Work], None]  # called once, at the end of its last pass; never after `cancel`
    latest_begin_s: float = inf  # no pass begins later: what is there by then is the outcome
    arrived_s: float = 0.0  # set by the device
    passes: int = 0  # that have ended
    model_s: float = 0.0  # inside passes
    last: Pass | None = None
    cancelled: bool = False
    is_over: bool = False  # `done` has been called
    left: int = field(init=False)  # rows still to be fed in this pass; more than one pass when they do not fit

    def __post_init__(self) -> None:
        self.left = self.rows[0]

    def end(self) -> None:
        """Nothing more is done about it."""
        self.is_over = True
        self.done(self)

    def cancel(self) -> None:
        """Nobody wants it any more. A pass under way ends as it began."""
        self.cancelled = True


class Device:
    """Runs passes of at most `max_rows` rows, oldest work first; a pass begins when the one before has ended."""

    def __init__(self, loop: VirtualLoop, pace: Pace, max_rows: int, gather_s: float = 0.0) -> None:
        """`gather_s`: how long it waits, after a pass, for the next calls of those whom it has just answered.

        With 0 it goes on at once with whoever waits, as the engine does. Then calls that come over hops miss the next
        pass, and streams fall into two groups that take turns.
        """
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}: a pass needs at least 1 row")
        self.passes: list[Pass] = []
        self._loop = loop
        self._pace = pace
        self._max_rows = max_rows
        self._gather_s = gather_s
        self._waiting: list[Work] = []  # by arrival; those in the pass under way are among them
        self._busy = False  # or about to be

    def submit(self, work: Work) -> None:
        """Queue `work`; what arrives at the same instant joins the same pass."""
        work.arrived_s = self._loop.time()
        self._waiting.append(work)
        self._wake()

    def _wake(self) -> None:
        if not self._busy and self._waiting:
            self._busy = True
            self._loop.at_rest(self._begin)

    def _begin(self) -> None:
        now = self._loop.time()
        taken: list[tuple[Work, int]] = []
        room = self._max_rows
        kept: list[Work] = []
        for work in self._waiting:
            if work.cancelled:
                continue
            if now > work.latest_begin_s:
                work.end()
                continue
            kept.append(work)
            if room > 0:
                rows = min(room, work.left)
                room -= rows
                taken.append((work, rows))
        self._waiting = kept
        if not taken:
            self._busy = False
            return
        rows = self._max_rows - room
        step = Pass(now, self._pace.seconds(rows), rows)
        self.passes.append(step)
        self._loop.call_later(step.seconds, self._end, step, taken)

    def _end(self, step: Pass, taken: list[tuple[Work, int]]) -> None:
        over: set[Work] = set()
        for work, rows in taken:
            work.left -= rows
            work.model_s += step.seconds
            work.last = step
            if work.left > 0:
                continue
            work.passes += 1
            if work.passes < len(work.rows):
                work.left = work.rows[work.passes]
            else:
                over.add(work)
        if over:
            self._waiting = [work for work in self._waiting if work not in over]
        num_waiting = len(self._waiting)
        for work, _ in taken:  # busy still: what these submit at once must not begin a pass beside the next one
            if work in over and not work.cancelled:
                work.end()
        is_expecting = len(self._waiting) - num_waiting < len(over)  # some of those answered have not called again yet
        if is_expecting and self._gather_s > 0:
            self._loop.call_later(self._gather_s, self._loop.at_rest, self._begin)
        else:
            self._busy = False
            self._wake()

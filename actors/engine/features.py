"""Features of another model as input: what a sequence was given of them, and what its next rows lack.

Of a runner that takes features (`actors.engine.step.TakesFeatures`), the row at position p reads what the plane holds
of position p - 1: features that were given there, or else what the drafter itself made of that position in an earlier
pass. Rows that read the latter are provisional: they count until the next call of the sequence, which brings features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from actors.messages import Features, Halves


class FeaturesMissing(Exception):
    """Rows cannot be run, for nobody gave the features of `position`; call again with those from there on."""

    def __init__(self, position: int) -> None:
        super().__init__(f"the features of position {position} are missing")
        self.position = position


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a pass can go."""

    num_known: int  # leading positions whose features are known
    end: int  # of the rows that it can run; the others may follow in later passes


def reach(start: int, end: int, num_covered: int, held: int, given: Features | None) -> Reach:
    """How far a pass over rows at positions [start, end) can go.

    Of the leading positions `held` are in the plane already, `given` may follow on these. Where features end the
    drafter's own state serves, which is there once an earlier pass has run its row: so such rows are run one by one;
    the first `num_covered` rows must not be among them. What has been given is used as far as it goes. Raises
    `FeaturesMissing` if there is no row that can be run.
    """
    known = held if given is None or given.start > held else max(held, given.end)
    by_own = known + 1  # the first row that reads the drafter's own state
    if by_own < min(end, num_covered):
        if known == held or by_own <= start:
            raise FeaturesMissing(held)
        return Reach(known, by_own)
    return Reach(known, min(end, max(by_own, start + 1)))


def share_of(given: Features | None, start: int, end: int) -> tuple[int, Halves] | None:
    """Of the given features those that a pass over rows [start, end) puts into the plane: first position, rows.

    They begin at the position before the rows, whose place may hold the drafter's own state.
    """
    if given is None:
        return None
    first, last = max(start - 1, given.start, 0), min(end, given.end)
    if first >= last:
        return None
    return first, np.asarray(given.rows[first - given.start : last - given.start], np.float16)

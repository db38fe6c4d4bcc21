"""A target's features on their way to the drafter: kept from one verdict to the next proposal, then forgotten."""

from __future__ import annotations

import numpy as np

from actors.messages import Features, Ids

_NO_IDS: Ids = np.empty(0, np.int32)


class Handover:
    """Of one sequence. What its drafter has been given is not kept: a drafter that lost it says what it misses, and the
    next verify pass reads that from the target's plane again."""

    def __init__(self) -> None:
        self._features: Features | None = None  # of the latest verdict
        self._ids = _NO_IDS  # the text that they belong to
        self._given = 0  # leading positions that the drafter has, or will have with `_features`

    def take(self, ids: Ids) -> Features | None:
        """What to give along with a proposal after `ids`; it is the caller's to hand over."""
        # Where the text went on otherwise they are of no use, nor is that of the last token, which nobody has run yet.
        self._given = min(self._given, _num_common(self._ids, ids), len(ids) - 1)
        features, self._features = self._features, None
        if features is None or self._given <= features.start:
            return None
        return Features(features.start, features.rows[: self._given - features.start])

    def misses(self, position: int) -> None:
        """The drafter has said which position it lacks first."""
        self._given = position

    def wanted_from(self, ids: Ids, window: int = 0) -> int:
        """First position whose features the verify pass after `ids` shall answer; `window`: of the drafter."""
        return max(0, min(self._given, len(ids) - 1), len(ids) - window if window else 0)

    def keep(self, ids: Ids, features: Features) -> None:
        """A verify pass has answered; `ids` are its context with what it has accepted."""
        self._ids, self._features = ids, features
        self._given = features.end


def _num_common(a: Ids, b: Ids) -> int:
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length

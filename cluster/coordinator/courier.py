"""Carries the target's features to a drafter elsewhere: each verdict brings those of what it has decided.

The drafter needs the features of every position but the last of what it is told, or of a window of them. What it lacks
it says (`Draft.features_missing`); the next pass of the target then answers them from there on, and the round after it
drafts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from actors.messages import Context, Draft, Features, Verdict


class Courier:
    """Of one request. Holds the features that the drafter is not known to have."""

    def __init__(self, window: int = 0) -> None:
        """`window`: positions before the newest token whose features a proposal needs; 0: all."""
        self._window = window
        self._bag: Features | None = None
        self._wanted_from = 0  # the first position whose features the target is asked for
        self.carried_bytes = 0  # to the drafter so far

    def asks(self, context: Context) -> Context:
        """The context of a pass of the target, which asks for features."""
        return replace(context, features_from=max(self._wanted_from, self._needed_from(context.num_tokens + 1)))

    def collect(self, verdict: Verdict) -> None:
        """A pass of the target has been decided."""
        found = verdict.features
        if found is None or found.end <= self._wanted_from:
            return
        if self._bag is None or found.start != self._bag.end:
            self._bag = found
        else:
            self._bag = Features(self._bag.start, np.concatenate([self._bag.rows, found.rows]))
        if self._window and len(self._bag.rows) > self._window:
            self._bag = Features(found.end - self._window, self._bag.rows[-self._window :])
        self._wanted_from = found.end

    def load(self, context: Context, *, knows_sequence: bool) -> Context | None:
        """The context of a proposal with the features on hand; None: they do not suffice, so the round goes on plain.

        `knows_sequence`: the replica holds the beginning of the sequence.
        """
        bag, start = self._bag, self._needed_from(context.num_tokens)
        if not knows_sequence and (bag is None or bag.start > start):
            self._restart(start)
            return None
        if bag is None or bag.end < context.num_tokens - 1:
            return None
        self.carried_bytes += bag.rows.nbytes
        return replace(context, features=bag)

    def delivered(self) -> None:
        """The drafter has drafted from what it was sent."""
        self._bag = None

    def refused(self, draft: Draft) -> None:
        """An empty draft came: perhaps for want of features."""
        if draft.features_missing >= 0:
            self._restart(draft.features_missing)

    def _needed_from(self, num_tokens: int) -> int:
        """First position whose features a proposal after so many tokens needs, whoever makes it."""
        return max(0, num_tokens - 1 - self._window) if self._window else 0

    def _restart(self, position: int) -> None:
        if self._bag is not None and self._bag.start <= position:
            return  # on hand already
        self._bag, self._wanted_from = None, position

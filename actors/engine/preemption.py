"""Who gives pages back when KV memory is full: pure logic.

A sequence may take pages from one that was opened after it, and from one that nobody has called for a
while; never from an older one that is at work, not even between two of its calls. So the oldest sequence
always gets on, whoever lost pages waits until there is room for its whole call, and no two can take the
same page from each other in turns. What was taken is computed again later (or found in the prefix cache).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RESTING_S = 5.0  # between two calls of a live sequence: the other tiers' work and the hops


@dataclass(frozen=True, slots=True)
class Holder:
    """A sequence that holds pages."""

    sequence_id: str
    age: int  # order of opening: the smaller the older
    num_pages: int
    idle_s: float | None  # since its last call was answered; None: a call is under way


@dataclass(frozen=True, slots=True)
class Preemption:
    """The policy. A sequence without a call for more than `resting_s` counts as left behind."""

    resting_s: float = RESTING_S

    def left_behind(self, holder: Holder) -> bool:
        """Whether anybody may have its pages."""
        return holder.idle_s is not None and holder.idle_s > self.resting_s

    def victims(self, age: int, holders: Iterable[Holder], num_pages: int) -> list[Holder]:
        """The fewest holders, in order, whose pages together are `num_pages` for a sequence of this age.

        Those left behind come first, longest idle first, then the youngest. Empty when all that may be
        taken would not do: nobody loses pages in vain.
        """
        takeable = [h for h in holders if h.age > age or (h.age != age and self.left_behind(h))]
        takeable.sort(key=self._order)
        chosen = []
        for holder in takeable:
            if num_pages <= 0:
                break
            chosen.append(holder)
            num_pages -= holder.num_pages
        return chosen if num_pages <= 0 else []

    def takeable(self, age: int, holders: Iterable[Holder]) -> int:
        """Pages that a sequence of this age could take."""
        return sum(h.num_pages for h in holders if h.age > age or (h.age != age and self.left_behind(h)))

    def _order(self, holder: Holder) -> tuple[bool, float, int]:
        if self.left_behind(holder):
            return False, -(holder.idle_s or 0.0), -holder.age
        return True, 0.0, -holder.age

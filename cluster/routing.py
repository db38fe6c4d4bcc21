"""Which replica of a pool a sequence is sent to: the one that knows its beginning, unless it is much busier.

Scores follow the trade-off of cache-aware routers (Zheng et al. 2024, "SGLang", section 3, and its
router's balance thresholds) in one number instead of two modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# What a whole known prompt is worth, as a share of the replica's places: it may be busier than the least busy
# replica by as much. Half: a prefill saved is paid back by waiting in a batch that is half full, not in a full one.
PREFIX_WORTH = 0.5


@dataclass(frozen=True, slots=True)
class Preference:
    """Argument of a lease: what is known of replicas, by their tags."""

    shares: Mapping[str, float] = field(default_factory=dict)  # of the prompt, that it has met
    avoid: frozenset[str] = frozenset()  # lost, slow or full just now


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica as its router sees it."""

    tag: str
    num_leases: int


def rank(candidates: Sequence[Candidate], preference: Preference, capacity: int) -> list[list[str]]:
    """Tags in groups, the best group first; within a group the least busy is to be taken.

    Replicas that know enough of the prompt for their load come first, one by one, then all others that may be used,
    then those that are full or to be avoided: perhaps they are not any more, and they can say so.
    """
    usable = [c for c in candidates if c.tag not in preference.avoid and c.num_leases < capacity]
    least = min((c.num_leases for c in usable), default=0)
    scored = [
        (PREFIX_WORTH * preference.shares.get(c.tag, 0.0) - (c.num_leases - least) / capacity, c.tag) for c in usable
    ]
    preferred = [tag for score, tag in sorted(scored, reverse=True) if score > 0]
    others = [c.tag for c in usable if c.tag not in preferred]
    rest = [c.tag for c in candidates if c.tag not in preferred and c.tag not in others]
    return [*([tag] for tag in preferred), *(group for group in (others, rest) if group)]

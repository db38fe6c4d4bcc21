"""Sums over the ranks of one machine, through memory that they share (`src/exchange.c`).

Measured at two ranks and five rows on a busy machine: about 0.3 ms per sum through the process group, and a pass of
30 layers has 60 of them; a few microseconds here.
"""

from __future__ import annotations

import mmap

from actors.engine.native.library import ExchangeArgs
from actors.engine.native.shared import CACHE_LINE_BYTES, address_of, open_shared

FETCHED_BYTES = 1 << 20  # of the next weights, while a rank waits for the others: MOST_AHEAD in `src/forward.c`


class Exchange:
    """One rank's view of the group's memory. `capacity` is the floats of the largest partial result."""

    def __init__(self, rank: int, num_ranks: int, capacity: int, timeout_s: float, memory: mmap.mmap) -> None:
        self._memory = memory
        self.rank = rank
        flags = address_of(memory)
        slots = flags + CACHE_LINE_BYTES * num_ranks
        self.args = ExchangeArgs(rank, num_ranks, capacity, timeout_s, flags, slots, 0)


def num_bytes(num_ranks: int, capacity: int) -> int:
    """Size of the memory: a flag per rank, two sets of slots."""
    return CACHE_LINE_BYTES * num_ranks + 2 * num_ranks * capacity * 4


def open_exchange(rank: int, num_ranks: int, capacity: int, timeout_s: float) -> Exchange | None:
    """Collective: an exchange over all ranks, or None on all of them if they cannot share memory."""
    memory = open_shared(num_bytes(num_ranks, capacity))
    return None if memory is None else Exchange(rank, num_ranks, capacity, timeout_s, memory)

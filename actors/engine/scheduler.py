"""Which rows run in the next step: decode and verify rows first, prefill chunks in what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DECODE_ROWS = 32  # a backlog up to this many rows is a decode or verify pass, longer is prefill


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions `[start, end)` of one sequence."""

    sequence_id: str
    start: int
    end: int


def plan_chunks(backlogs: Sequence[tuple[str, int, int]], max_rows: int) -> list[Chunk]:
    """Pack backlogs `(sequence_id, num_done, num_ids)` into at most `max_rows` rows.

    Short backlogs go first, so a long prompt never starves running sequences; prefills share the rest in
    order, each cut to a chunk. Backlogs without rows are left out.
    """
    chunks = []
    room = max_rows
    waiting = [(s, done, total) for s, done, total in backlogs if total > done]
    waiting.sort(key=lambda b: b[2] - b[1] > DECODE_ROWS)
    for sequence_id, done, total in waiting:
        if room == 0:
            break
        size = min(total - done, room)
        chunks.append(Chunk(sequence_id, done, done + size))
        room -= size
    return chunks

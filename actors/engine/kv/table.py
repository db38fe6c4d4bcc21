"""Index arithmetic of one sequence: position -> page -> slot.

Page i of a sequence holds positions `[i * page_tokens, (i + 1) * page_tokens)`; slot
`page * page_tokens + offset` is the row of the KV tensors where a position's key and value live.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from actors.engine.kv.vector import Int32s, IntVector


def pages_for(num_tokens: int, page_tokens: int) -> int:
    """Pages that hold `num_tokens` tokens."""
    return -(-num_tokens // page_tokens)


class PageTable:
    """The pages of one sequence, in the order of their positions."""

    __slots__ = ("_pages", "page_tokens")

    def __init__(self, page_tokens: int, pages: Sequence[int] | Int32s = ()) -> None:
        self.page_tokens = page_tokens
        self._pages = IntVector(pages)

    def __len__(self) -> int:
        return len(self._pages)

    def __getitem__(self, index: int) -> int:
        return self._pages[index]

    def __setitem__(self, index: int, page: int) -> None:
        self._pages[index] = page

    @property
    def capacity(self) -> int:
        """Positions that the pages hold, in tokens."""
        return len(self._pages) * self.page_tokens

    def extend(self, pages: Sequence[int]) -> None:
        """Append pages."""
        self._pages.extend(pages)

    def cut(self, num_pages: int) -> list[int]:
        """Keep the first `num_pages` pages; returns the others, last first."""
        dropped: list[int] = self._pages.view(num_pages)[::-1].tolist()
        self._pages.cut(num_pages)
        return dropped

    def pages(self, num_pages: int | None = None) -> Int32s:
        """The first `num_pages` pages (None: all): [num_pages] int32, a read-only view."""
        return self._pages.view(0, num_pages)

    def slots(self, start: int, end: int) -> Int32s:
        """Slots of positions `[start, end)`: [end - start] int32. Raises ValueError past the last page."""
        if not 0 <= start <= end <= self.capacity:
            raise ValueError(f"positions [{start}, {end}) are not within the {self.capacity} reserved ones")
        positions = np.arange(start, end, dtype=np.int32)
        page_index, offset = np.divmod(positions, np.int32(self.page_tokens))
        slots: Int32s = self._pages.view()[page_index] * np.int32(self.page_tokens) + offset
        return slots

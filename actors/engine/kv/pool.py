"""The physical free list: which pages hold nothing anybody wants."""

from __future__ import annotations

from collections.abc import Iterator


class PagePool:
    """A stack of free page numbers in `[0, num_pages)`; the page freed last is taken first (warm memory)."""

    def __init__(self, num_pages: int) -> None:
        if num_pages <= 0:
            raise ValueError(f"num_pages is {num_pages}: the KV cache needs at least one page")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))

    def __iter__(self) -> Iterator[int]:
        return iter(self._free)

    @property
    def num_free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def take(self) -> int:
        """Remove and return a free page. Raises IndexError if there is none."""
        return self._free.pop()

    def give(self, page: int) -> None:
        """Return a page; the caller guarantees that it was taken and that nobody uses it."""
        self._free.append(page)

"""The shapes that steps are rounded up to, so that few CUDA graphs serve all of them."""

from __future__ import annotations

from actors.engine.gpu.tensors import Shape

FIRST_PAGES = 16
PAGES_FACTOR = 4  # a table wider than needed costs only the launch of programs that end at once
TAIL_FACTOR = 4  # room of the tail per row: trees cut into paths list shared ancestors once per path
TREE_WORDS = (0, 1, 2, 4, 8)


class Buckets:
    """Rows in powers of two up to `max_rows` (0: there are none), page tables up to `max_pages` columns."""

    def __init__(self, max_rows: int, max_pages: int) -> None:
        self.rows = tuple(1 << i for i in range(max_rows.bit_length()))
        pages = [min(FIRST_PAGES, max_pages)]
        while pages[-1] < max_pages:
            pages.append(min(pages[-1] * PAGES_FACTOR, max_pages))
        self.pages = tuple(pages)

    def fit(self, num_rows: int, num_pages: int, num_words: int = 0) -> Shape | None:
        """The smallest bucket for a step of this size; None if there is none."""
        rows = next((r for r in self.rows if r >= num_rows), None)
        pages = next((p for p in self.pages if p >= num_pages), None)
        words = next((w for w in TREE_WORDS if w >= num_words), None)
        return None if rows is None or pages is None or words is None else _bucket(rows, pages, words)

    def all(self) -> list[Shape]:
        """Every bucket without tree masks, the largest first: later captures then reuse its memory."""
        return [_bucket(rows, pages, 0) for rows in reversed(self.rows) for pages in reversed(self.pages)]


def _bucket(rows: int, pages: int, words: int) -> Shape:
    return Shape(
        num_rows=rows, num_items=rows, num_tail=TAIL_FACTOR * rows, num_sequences=rows, num_pages=pages,
        num_words=words,
    )

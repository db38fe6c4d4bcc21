"""Page copies of copy on write, made order-free."""

from __future__ import annotations

from collections.abc import Iterable


def parallel_copies(copies: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The copies `(from, to)`, meant one after another, as an equal set to be made all at once.

    A page that was copied into and then copied on, or given up and taken again within one step, would
    otherwise make the outcome of a vectorised copy depend on its order. Every `to` is unique in the result.
    """
    origin: dict[int, int] = {}  # page -> the page whose contents before the step it shall hold
    for source, target in copies:
        origin[target] = origin.get(source, source)
    return [(source, target) for target, source in origin.items() if source != target]

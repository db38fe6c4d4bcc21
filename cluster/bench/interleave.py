"""Fair measuring of several variants: round by round, so that the machine's drift hits all of them alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence

Measure = Callable[[], float]  # runs once, returns its own figure (seconds, or seconds per token)


def interleaved(
    variants: Mapping[str, Measure], rounds: int, warmups: int = 1, on_run: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """`rounds` figures of every variant, after `warmups` unrecorded rounds.

    Every round runs each variant once; the order is rotated from round to round, so that none always
    follows the same neighbour. `on_run` is called after each run, for progress.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}: measure at least once")
    names = list(variants)
    figures: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warmups, rounds):
        gc.collect()  # outside the measured runs
        for name in _rotated(names, number):
            figure = variants[name]()
            if number >= 0:
                figures[name].append(figure)
            on_run()
    return figures


def num_runs(variants: Mapping[str, Measure], rounds: int, warmups: int = 1) -> int:
    """How often `on_run` will be called."""
    return len(variants) * (rounds + warmups)


def _rotated(names: Sequence[str], number: int) -> list[str]:
    start = number % len(names) if names else 0
    return [*names[start:], *names[:start]]

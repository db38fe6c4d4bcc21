"""What teaches nothing: texts that repeat themselves, and texts that are there already."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

LOOP_CHECK_TOKENS = 16  # a text is looked at whenever it has grown by so many
_LONGEST_PERIOD = 64  # tokens
_LEAST_LOOP = 64  # tokens that repeat what stands a period before them, ...
_LEAST_TURNS = 3  # ... and so many periods
FEWEST_TOKENS = 4  # of an answer
FEWEST_LETTERS = 8  # of a question


def loop_start(ids: npt.NDArray[np.integer], longest_period: int = _LONGEST_PERIOD) -> int | None:
    """Where the loop at the end of a text begins to repeat (the first turn is not part of it); None: there is none."""
    best: int | None = None
    for period in range(1, min(longest_period, len(ids) // _LEAST_TURNS) + 1):
        least = max(_LEAST_LOOP, _LEAST_TURNS * period)
        if len(ids) < least + period:
            continue
        same = ids[period:] == ids[:-period]
        if not same[-least:].all():
            continue
        differs = np.flatnonzero(~same)
        start = (int(differs[-1]) + 1 if len(differs) else 0) + period
        best = start if best is None else min(best, start)
    return best


def digest(text: str) -> int:
    """Equal for texts that differ in nothing but case, spaces and punctuation; 63 bits."""
    letters = "".join(c for c in text.casefold() if c.isalnum())
    return int.from_bytes(hashlib.blake2b(letters.encode(), digest_size=8).digest(), "big") >> 1


def is_question(text: str) -> bool:
    """Whether a question says anything."""
    return sum(c.isalnum() for c in text) >= FEWEST_LETTERS

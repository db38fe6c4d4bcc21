"""Logits of an emulated model: dense rows, of which only the best words' entries are ever written."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from actors.emulation.voice import Choice
from actors.engine.step import Int32s

NEVER = -1e4  # logit of ids that are no words: probability 0 at any temperature
_LEAST_BEST = 0.02  # the best word keeps its place however seldom it is right
_BEHIND = 0.9  # a word has at most so much of what the next better one has
_LEAST_REST = 1e-6  # what is left for the words that nobody names, all together


class Head:
    """Rows whose softmax at temperature 1 says how far the voice is to be trusted.

    Each of the choice's words has its chance of what the better ones leave (but stays behind them), and all other
    words share the rest evenly. Rows are kept from pass to pass: filling [rows, vocabulary] anew would take longer
    than a small device's pass.
    """

    def __init__(self, words: Int32s, vocab_size: int) -> None:
        self._words = words
        self.vocab_size = vocab_size
        self._blank = np.full(vocab_size, NEVER, np.float32)
        self._blank[words] = 0.0
        self._rows = torch.empty(0, vocab_size)
        self._written: tuple[Int32s, Int32s] | None = None

    def rows(self, choices: Sequence[Choice]) -> torch.Tensor:
        """Logits [len(choices), vocab_size] float32; valid until the next call."""
        count = len(choices)
        if count > len(self._rows):
            self._rows = torch.from_numpy(np.tile(self._blank, (max(count, 2 * len(self._rows)), 1)))
            self._written = None
        values = self._rows.numpy()
        if self._written is not None:
            values[self._written] = 0.0
        index = np.repeat(np.arange(count, dtype=np.int32), [len(choice.words) for choice in choices])
        ids = self._words[[word for choice in choices for word in choice.words]]
        levels = [level for choice in choices for level in self._levels(choice)]
        values[index, ids] = np.array(levels, np.float32)
        self._written = (index, ids)
        return self._rows[:count]

    def _levels(self, choice: Choice) -> list[float]:
        """Logits of the choice's words, when those of all others are 0."""
        shares = [max(choice.chances[0], _LEAST_BEST)]
        rest = 1.0 - shares[0]
        for chance in choice.chances[1:]:
            shares.append(min(chance * rest, _BEHIND * shares[-1]))
            rest -= shares[-1]
        each = max(rest, _LEAST_REST) / (len(self._words) - len(shares))
        return [math.log(max(share, each) / each) for share in shares]

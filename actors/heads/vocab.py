"""Part of the vocabulary: a drafter that predicts only frequent tokens reads a fraction of the output head (FR-Spec,
2502.14856; EAGLE-3, 2503.01840).

Ids that it lacks are never drafted, which costs acceptance, not exactness: they only cannot be guessed.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

LEAST_LOGIT = -1e4  # of ids that are not drafted: no chance at any temperature, and yet a number


def most_frequent(counts: npt.ArrayLike, size: int, always: Iterable[int] = ()) -> npt.NDArray[np.int32]:
    """The `size` likeliest ids, ascending, [size] int32: `always` (ends of texts and turns), then by `counts` [vocab].

    Raises ValueError: `size` is larger than the vocabulary, or too small for `always`.
    """
    numbers = np.asarray(counts)
    chosen = sorted(set(always))
    if not max(1, len(chosen)) <= size <= len(numbers):
        raise ValueError(f"a draft vocabulary of {size} ids must hold {len(chosen)} and lie within {len(numbers)}")
    by_count = np.argsort(-numbers, kind="stable")
    others = by_count[~np.isin(by_count, chosen)][: size - len(chosen)]
    return np.sort(np.concatenate([np.array(chosen, np.int64), others])).astype(np.int32)


class DraftVocabulary:
    """Which ids are drafted, and the way between their logits and those of the whole vocabulary."""

    def __init__(self, ids: npt.ArrayLike, vocab_size: int) -> None:
        """`ids` [num_ids] ascend. Raises ValueError."""
        if not np.issubdtype(np.asarray(ids).dtype, np.integer):
            raise ValueError("the ids of a draft vocabulary must be whole numbers")
        self.ids = np.asarray(ids, np.int32)
        self.vocab_size = vocab_size
        if self.ids.ndim != 1 or not len(self.ids) or (np.diff(self.ids) <= 0).any():
            raise ValueError("the ids of a draft vocabulary must ascend")
        if not 0 <= int(self.ids[0]) <= int(self.ids[-1]) < vocab_size:
            raise ValueError(f"an id of the draft vocabulary lies outside the vocabulary of {vocab_size}")
        self._columns = torch.from_numpy(self.ids.astype(np.int64))
        self._places = torch.full((vocab_size,), -1, dtype=torch.int64)
        self._places[self._columns] = torch.arange(len(self.ids))

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole vocabulary."""
        return len(self.ids) == self.vocab_size

    @property
    def known_ids(self) -> npt.NDArray[np.int64] | None:
        """The ids where they are not all (see `KnowsPart`)."""
        return None if self.is_whole else self.ids.astype(np.int64)

    def widen(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, num_ids] -> [num_rows, vocab_size], `LEAST_LOGIT` where no id is."""
        if self.is_whole:
            return logits
        whole = logits.new_full((len(logits), self.vocab_size), LEAST_LOGIT)
        return whole.scatter_(1, self._columns.to(logits.device).expand(len(logits), -1), logits)  # the fastest way

    def places(self, tokens: torch.Tensor) -> torch.Tensor:
        """Where ids stand among the drafted ones, int64 in the shape of `tokens`; -1: nowhere."""
        return self._places.to(tokens.device)[tokens]

    def part(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of a matrix [vocab_size, ...] that belong to drafted ids."""
        return rows if self.is_whole else rows[self._columns.to(rows.device)]


class ReducedHead(nn.Module):
    """A linear layer to the logits of the drafted ids."""

    draft_vocab_ids: torch.Tensor

    def __init__(self, hidden: int, draft_vocab_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(draft_vocab_size, hidden))
        self.register_buffer("draft_vocab_ids", torch.arange(draft_vocab_size, dtype=torch.int32))

    def begin(self, vocabulary: DraftVocabulary, output: torch.Tensor) -> None:
        """Start from the target: its rows of `output` [vocab_size, hidden]."""
        with torch.no_grad():
            self.draft_vocab_ids.copy_(torch.from_numpy(vocabulary.ids))
            self.weight.copy_(vocabulary.part(output))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., draft_vocab_size]."""
        return nn.functional.linear(hidden, self.weight)

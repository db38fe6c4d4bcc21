"""Which ids a draft with a reduced vocabulary is to know: the most frequent ones of the target's own text.

A head over V' of V ids costs V' / V of its time (FR-Spec, 2502.14856). What it cannot say is simply not accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from actors.heads.vocab import most_frequent
from actors.training.data.shards import Text


def draft_vocabulary(texts: Iterable[Text], size: int, vocab_size: int, always: Sequence[int] = ()) -> torch.Tensor:
    """[size] int64 ascending: `always` (what ends a text, above all), then the most frequent, ties by id.

    Answers count; prompts, which nobody drafts, only settle ties. Raises `ValueError` for an impossible size.
    """
    written = np.zeros(vocab_size, np.int64)
    read = np.zeros(vocab_size, np.int64)
    for text in texts:
        marked = text.answer.astype(bool)
        written += np.bincount(text.ids[marked], minlength=vocab_size)
        read += np.bincount(text.ids[~marked], minlength=vocab_size)
    counts = written + read / (read.max(initial=0) + 1)
    return torch.from_numpy(most_frequent(counts, size, always).astype(np.int64))


def coverage(texts: Iterable[Text], ids: torch.Tensor) -> float:
    """Share of the answers' tokens that a vocabulary holds."""
    known = set(ids.tolist())
    total = inside = 0
    for text in texts:
        answers = text.ids[text.answer.astype(bool)]
        total += len(answers)
        inside += int(np.isin(answers, list(known)).sum())
    return inside / max(total, 1)

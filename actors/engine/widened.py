"""A model whose output head knows only part of the vocabulary, seen as one that knows all of it."""

from __future__ import annotations

import torch

from actors.engine.step import ModelRunner, StepInput
from actors.heads.vocab import DraftVocabulary


class WidenedRunner:
    """Runs passes below; ids that it does not know get no chance (`DraftVocabulary.widen`)."""

    def __init__(self, below: ModelRunner, vocabulary: DraftVocabulary) -> None:
        self._below = below
        self._vocabulary = vocabulary
        self.vocab_size = vocabulary.vocab_size
        self.known_ids = vocabulary.known_ids
        self.shares_head = below.shares_head

    def forward(self, step: StepInput) -> torch.Tensor:
        """As below, but [num_logits, vocab_size of the whole vocabulary]."""
        rows = self._below.forward(step)
        return rows if step.wants_hidden else self._vocabulary.widen(rows)

"""An untrained head over a tiny model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from actors.heads.eagle import EagleHead, eagle_config
from actors.heads.vocab import DraftVocabulary, most_frequent
from tests.models import VOCAB, tiny_model


def fresh_head(
    num_ids: int = 32, num_layers: int = 1, seed: int = 0, scale: float = 0.2, architecture: str = "llama"
) -> EagleHead:
    """Seeded, with laws far from uniform; it drafts `num_ids` scattered ids."""
    model: Any = tiny_model(architecture)
    ids = most_frequent(np.random.default_rng(seed).random(VOCAB), num_ids, always=[1])
    torch.manual_seed(seed)
    head = EagleHead.fresh(
        eagle_config(model.config, num_ids, num_layers=num_layers, name="tiny"), model.get_input_embeddings().weight,
        model.get_output_embeddings().weight, DraftVocabulary(ids, VOCAB), scale,
    )
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 2.0)
    return head.requires_grad_(False)

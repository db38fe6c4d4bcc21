"""What an untrained head takes over from the target."""

from __future__ import annotations

from typing import Any

import torch

from actors.heads.vocab import DraftVocabulary
from actors.training.target import Target

_NAMES = ("norm", "final_layernorm", "ln_f")


def vocabulary(target: Target, draft_vocab_ids: torch.Tensor | None) -> DraftVocabulary:
    """Of a trainee; None: the target's whole one."""
    ids = torch.arange(target.vocab_size) if draft_vocab_ids is None else draft_vocab_ids
    return DraftVocabulary(ids.cpu().numpy(), target.vocab_size)


def final_norm(target: Target) -> torch.Tensor:
    """[hidden] what the target's final norm multiplies a state of size one with; ones where it is not found."""
    body: Any = target.model.get_decoder() if hasattr(target.model, "get_decoder") else target.model.base_model
    norm = next((getattr(body, name) for name in _NAMES if hasattr(body, name)), None)
    ones = torch.ones(target.hidden, dtype=target.embedding.dtype, device=target.device)
    if norm is None:
        return ones.float()
    with torch.no_grad():
        # Asked of the module, since some store the weight less one. A norm that takes the mean off maps ones to zero.
        weight: torch.Tensor = norm(ones).float()
    return weight if bool((weight != 0).any()) else ones.float()

"""What all heads share: the output matrix over the drafted ids, and how they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import nn

from actors.heads.format import BadHead, HeadConfig, load_tensors, save_head
from actors.heads.vocab import DraftVocabulary, ReducedHead

Config = TypeVar("Config", bound=HeadConfig)

HEAD = "head.weight"
_IDS = "head.draft_vocab_ids"


class DraftHead(nn.Module, Generic[Config]):
    """A module with an output matrix `head` that may be the target's own rows, and is then not stored."""

    config: Config
    head: ReducedHead

    def fill(self, tensors: Mapping[str, torch.Tensor], output: torch.Tensor, where: str) -> None:
        """Take over what was stored; `output` [vocab, hidden] is the target's, for those that bring none.

        Raises `BadHead`, which names `where`.
        """
        found = dict(tensors)
        if _IDS in found:
            try:
                vocabulary = DraftVocabulary(found[_IDS].numpy(), self.config.vocab_size)
            except ValueError as error:
                raise BadHead(f"{where}: {_IDS} cannot be used: {error}: copy or train the head again") from error
            if HEAD not in found:
                found[HEAD] = vocabulary.part(output)
        load_tensors(self, found, where)

    def save(
        self, directory: Path | str, dtype: torch.dtype = torch.float32, card: str = "", with_head: bool = True
    ) -> None:
        """Store it. `with_head`: False if its output matrix was not trained, so that the target's is as good."""
        tensors = {
            name: t.to(dtype) if t.is_floating_point() else t
            for name, t in self.state_dict().items() if with_head or name != HEAD
        }
        save_head(directory, self.config, tensors, card)

    @property
    def vocabulary(self) -> DraftVocabulary:
        """Which ids it drafts."""
        return DraftVocabulary(self.head.draft_vocab_ids.cpu().numpy(), self.config.vocab_size)

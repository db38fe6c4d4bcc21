"""The trained exit of the `early_exit` drafter: from the residual stream after an inner layer to a token's logits.

LayerSkip (2404.16710) trains the whole target until its own head can be used at every layer; here the target stays as
it is, and a small adapter stands before the head, as in Kangaroo (2404.18911), whose adapter attends to other positions
besides. Untrained it is the target's own norm and head, over the drafted ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import nn
from torch.nn import functional

from actors.heads.base import DraftHead
from actors.heads.format import HeadConfig, load_head
from actors.heads.layers import RMSNorm
from actors.heads.vocab import DraftVocabulary, ReducedHead


@dataclass(frozen=True, slots=True)
class ExitConfig(HeadConfig):
    """Settings of an exit."""

    kind: ClassVar[str] = "early_exit"

    inner: int = field(kw_only=True)  # width of the adapter
    epsilon: float = field(default=1e-5, kw_only=True)  # of the norms

    def __post_init__(self) -> None:
        super(ExitConfig, self).__post_init__()
        if len(self.feature_layers) != 1 or self.feature_layers[0] >= self.num_target_layers:
            raise ValueError(
                f"feature_layers {list(self.feature_layers)}: an exit follows one layer, before the last of "
                f"{self.num_target_layers}"
            )
        if self.inner < 1:
            raise ValueError(f"inner {self.inner} must be at least 1")

    @property
    def exit_layer(self) -> int:
        """After which layer (1: the first)."""
        return self.feature_layers[0]


class ExitHead(DraftHead[ExitConfig]):
    """h + adapter(norm(h)), then norm and head."""

    def __init__(self, config: ExitConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden
        self.adapter_norm = RMSNorm(hidden, config.epsilon)
        self.gate = nn.Linear(hidden, config.inner, bias=False)
        self.up = nn.Linear(hidden, config.inner, bias=False)
        self.down = nn.Linear(config.inner, hidden, bias=False)
        self.norm = RMSNorm(hidden, config.epsilon)
        self.head = ReducedHead(hidden, config.draft_vocab_size)

    @classmethod
    def fresh(
        cls, config: ExitConfig, norm: torch.Tensor, output: torch.Tensor, vocabulary: DraftVocabulary,
        scale: float = 0.02,
    ) -> Self:
        """An untrained exit (seed PyTorch before): the target's final norm [hidden], as it is multiplied, and the rows
        of the drafted ids of its output head [vocab, hidden], behind an adapter that adds nothing yet."""
        module = cls(config)
        with torch.no_grad():
            nn.init.normal_(module.gate.weight, std=scale)
            nn.init.normal_(module.up.weight, std=scale)
            nn.init.zeros_(module.down.weight)
            module.norm.weight.copy_(norm)
        module.head.begin(vocabulary, output)
        return module

    @classmethod
    def load(cls, directory: Path | str, output: torch.Tensor) -> Self:
        """A stored exit; `output` [vocab, hidden]: the target's head, for an untrained one. Raises `BadHead`."""
        config, tensors = load_head(directory, ExitConfig)
        module = cls(config)
        module.fill(tensors, output, f"{directory}")
        return module

    def states(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the output matrix is applied to: residual stream [..., hidden] -> the same shape."""
        y = self.adapter_norm(hidden)
        result: torch.Tensor = self.norm(hidden + self.down(functional.silu(self.gate(y)) * self.up(y)))
        return result

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Residual stream [..., hidden] -> logits of the drafted ids [..., draft_vocab_size]."""
        logits: torch.Tensor = self.head(self.states(hidden))
        return logits

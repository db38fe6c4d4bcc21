"""Medusa heads: each predicts one token ahead from the target's last hidden state (Cai et al., 2401.10774, section 2).

Position p's hidden state is what the target predicts token p + 1 from; head k (from 0) predicts token p + 2 + k from
it, and none of them sees the tokens in between. A head is made of residual blocks whose matrices begin as zero, so an
untrained one says again what the target said of token p + 1. All share one output matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.nn import functional

from actors.heads.base import DraftHead
from actors.heads.format import HeadConfig, load_head
from actors.heads.layers import RMSNorm
from actors.heads.vocab import DraftVocabulary, ReducedHead


@dataclass(frozen=True, slots=True)
class MedusaConfig(HeadConfig):
    """Settings of a set of heads."""

    kind: ClassVar[str] = "medusa"

    num_heads: int = field(kw_only=True)  # tokens drafted at most
    num_blocks: int = field(default=1, kw_only=True)  # residual blocks of each head
    epsilon: float = field(default=1e-5, kw_only=True)  # of the norm

    def __post_init__(self) -> None:
        HeadConfig.__post_init__(self)
        if self.feature_layers != (self.num_target_layers,):
            raise ValueError(
                f"medusa heads read the target's last layer: feature_layers must be [{self.num_target_layers}]"
            )
        if self.num_heads < 1 or self.num_blocks < 1:
            raise ValueError(f"num_heads {self.num_heads} and num_blocks {self.num_blocks} must be at least 1")


def medusa_config(
    target: Any, draft_vocab_size: int, num_heads: int = 4, num_blocks: int = 1, name: str = ""
) -> MedusaConfig:
    """Heads for a target; `target`: its transformers configuration."""
    config = target.get_text_config()
    depth = int(config.num_hidden_layers)
    return MedusaConfig(
        int(config.hidden_size), int(config.vocab_size), depth, (depth,), draft_vocab_size, name,
        num_heads=num_heads, num_blocks=num_blocks, epsilon=float(getattr(config, "rms_norm_eps", 1e-5)),
    )


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b) (section 2.1.1)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> the same shape."""
        return x + functional.silu(self.linear(x))


class MedusaHeads(DraftHead[MedusaConfig]):
    """All heads of a target, over one output matrix."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        self.norm = RMSNorm(config.hidden, config.epsilon)
        self.heads = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(config.hidden) for _ in range(config.num_blocks)))
            for _ in range(config.num_heads)
        )
        self.head = ReducedHead(config.hidden, config.draft_vocab_size)

    @classmethod
    def fresh(
        cls, config: MedusaConfig, norm: torch.Tensor, output: torch.Tensor, vocabulary: DraftVocabulary
    ) -> Self:
        """Untrained heads over the target's final norm [hidden] and output matrix [vocab, hidden]."""
        module = cls(config)
        with torch.no_grad():
            module.norm.weight.copy_(norm)
        module.head.begin(vocabulary, output)
        return module

    @classmethod
    def load(cls, directory: Path | str, output: torch.Tensor) -> Self:
        """Stored heads; `output` [vocab, hidden] is the target's, for those that bring none. Raises `BadHead`."""
        config, tensors = load_head(directory, MedusaConfig)
        module = cls(config)
        module.fill(tensors, output, f"{directory}")
        return module

    def states(self, features: torch.Tensor, heads: Sequence[int] | None = None) -> torch.Tensor:
        """What the output matrix is applied to: features [..., hidden] -> [..., num_heads, hidden].

        `heads`: of these only, in this order.
        """
        x = self.norm(features.float())
        wanted = range(len(self.heads)) if heads is None else heads
        return torch.stack([self.heads[k](x) for k in wanted], dim=-2)

    def forward(self, features: torch.Tensor, heads: Sequence[int] | None = None) -> torch.Tensor:
        """Logits of the drafted ids, [..., num_heads, draft_vocab_size]; see `states`."""
        logits: torch.Tensor = self.head(self.states(features, heads))
        return logits

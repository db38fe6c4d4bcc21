"""The head of the `eagle` drafter (EAGLE-3, 2503.01840; EAGLE, 2401.15077): one decoder layer over token and features.

The row of the token at position t reads the target's features of position t - 1 (of low, middle and high layers, fused)
and guesses token t + 1. Where the target has not been yet, the head's own hidden state of t - 1 stands for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.nn import functional

from actors.heads.base import DraftHead
from actors.heads.format import HeadConfig, load_head
from actors.heads.layers import Core, DecoderLayer, RMSNorm, Rotary, core_like
from actors.heads.vocab import DraftVocabulary, ReducedHead


@dataclass(frozen=True, slots=True)
class EagleConfig(HeadConfig):
    """Settings of an `eagle` head."""

    kind: ClassVar[str] = "eagle"

    core: Core = field(kw_only=True)


def eagle_config(
    target: Any, draft_vocab_size: int, feature_layers: tuple[int, ...] = (), num_layers: int = 1, name: str = ""
) -> EagleConfig:
    """A head for a target (its transformers configuration); without `feature_layers` a low, a middle and a high one."""
    config = target.get_text_config()
    depth = int(config.num_hidden_layers)
    return EagleConfig(
        int(config.hidden_size), int(config.vocab_size), depth, feature_layers or low_middle_high(depth),
        draft_vocab_size, name, core=core_like(config, num_layers),
    )


def low_middle_high(num_layers: int) -> tuple[int, ...]:
    """The layers that EAGLE-3 reads: near the bottom, in the middle, near the top."""
    return tuple(sorted({max(1, layer) for layer in (min(2, num_layers), num_layers // 2, num_layers - 3)}))


class EagleHead(DraftHead[EagleConfig]):
    """Runs whole sequences, for training and as the measure of the engine's passes."""

    embedding: torch.Tensor

    def __init__(self, config: EagleConfig, embedding: torch.Tensor) -> None:
        """`embedding` [vocab_size, hidden]: the target's, not trained and not saved."""
        super().__init__()
        self.config = config
        hidden, core = config.hidden, config.core
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.fuse = nn.Linear(config.feature_size, hidden, bias=False)
        self.token_norm = RMSNorm(hidden, core.epsilon)
        self.state_norm = RMSNorm(hidden, core.epsilon)
        self.join = nn.Linear(2 * hidden, hidden, bias=False)
        self.layers = nn.ModuleList(DecoderLayer(hidden, core) for _ in range(core.num_layers))
        self.norm = RMSNorm(hidden, core.epsilon)
        self.head = ReducedHead(hidden, config.draft_vocab_size)
        self._rotary = Rotary(core)

    @classmethod
    def fresh(
        cls, config: EagleConfig, embedding: torch.Tensor, output: torch.Tensor, vocabulary: DraftVocabulary,
        scale: float = 0.02,
    ) -> Self:
        """An untrained head (seed PyTorch before): noise of deviation `scale`, and of `output`, the target's
        [vocab, hidden], the rows of the drafted ids."""
        module = cls(config, embedding)
        for parameter in module.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=scale)
        module.head.begin(vocabulary, output)
        return module

    @classmethod
    def load(cls, directory: Path | str, embedding: torch.Tensor, output: torch.Tensor) -> Self:
        """A stored head; `embedding` and `output` are the target's, [vocab, hidden]. Raises `BadHead`."""
        config, tensors = load_head(directory, EagleConfig)
        module = cls(config, embedding)
        module.fill(tensors, output, f"{directory}")
        return module

    def fused(self, features: torch.Tensor) -> torch.Tensor:
        """Features [..., feature_size] -> states [..., hidden]. Each layer's are brought to one size first."""
        config = self.config
        layers = features.float().view(*features.shape[:-1], len(config.feature_layers), config.hidden)
        alike = functional.rms_norm(layers, layers.shape[-1:], eps=config.core.epsilon)
        result: torch.Tensor = self.fuse(alike.flatten(-2))
        return result

    def joined(self, tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Input of the layers: tokens [...] int64, states [..., hidden] of the positions before -> [..., hidden]."""
        embedded = self.token_norm(self.embedding[tokens].float())
        result: torch.Tensor = self.join(torch.cat([embedded, self.state_norm(states)], -1))
        return result

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Own hidden states [..., hidden] -> logits of the drafted ids [..., draft_vocab_size]."""
        result: torch.Tensor = self.head(self.norm(hidden))
        return result

    def forward(self, tokens: torch.Tensor, features: torch.Tensor, num_steps: int = 1) -> list[torch.Tensor]:
        """Own hidden states, [num_steps] of [batch, length - step, hidden].

        tokens [batch, length] int64, features [batch, length, feature_size] of the same positions. Element t of step s
        is the row of token t + s, whose features are known up to position t - 1: it guesses token t + s + 1 as the
        s-th token after a draft began (training-time test, EAGLE-3 section 3). It attends to the rows of step 0 up to
        t, and to those of steps 1 to s of its own draft.
        """
        states = functional.pad(self.fused(features[:, :-1]), (0, 0, 1, 0))  # nothing stands before the first token
        layers: list[Any] = list(self.layers)
        past: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in layers]
        steps = []
        for step in range(num_steps):
            length = tokens.shape[1] - step
            positions = torch.arange(step, step + length, device=tokens.device)
            x = self.joined(tokens[:, step:], states[:, :length])
            for layer, held in zip(layers, past, strict=True):
                queries, keys, values = layer.qkv(x, self._rotary, positions)
                held.append((keys, values))
                x = layer.finish(x, _attend(queries, held))
            steps.append(x)
            states = x
        return steps


def _attend(queries: torch.Tensor, held: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Causal over the keys of step 0, and of each later step the one of the same element.

    queries [batch, heads, length, dim]; of each step, keys and values [batch, kv_heads, at least length, dim].
    """
    keys, values = held[0]
    if len(held) == 1:
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    length, scale = queries.shape[2], queries.shape[3] ** -0.5
    grouped = (len(queries), keys.shape[1], -1, *queries.shape[2:])
    queries = queries.reshape(grouped) * scale  # [batch, kv_heads, heads of each, length, dim]
    keys, values = keys[:, :, :length], values[:, :, :length]
    hidden = torch.ones(length, length, dtype=torch.bool, device=queries.device).triu(1)
    scores = [(queries @ keys[:, :, None].mT).masked_fill(hidden, -torch.inf)]
    own = [(k[:, :, None, :length], v[:, :, None, :length]) for k, v in held[1:]]
    scores += [(queries * k).sum(-1, keepdim=True) for k, _ in own]
    weights = torch.cat(scores, -1).softmax(-1)
    out = weights[..., :length] @ values[:, :, None]
    for step, (_, v) in enumerate(own):
        out = out + weights[..., length + step, None] * v
    return out.flatten(1, 2)

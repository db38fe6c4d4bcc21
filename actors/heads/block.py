"""The head of the `block` drafter: one pass drafts a whole block over the target's features (DFlash, 2602.06036).

A block is the newest token, which is known, and mask places after it. Its rows see each other in both directions, and
of the text before them not rows of their own but the target's features: those of a position, fused to one vector, give
keys and values of every layer. A context position thus costs a few small products, once, and a draft of any length
costs one pass.

A text of n tokens has features of its first n - 1 positions (the target has not run the newest token). The block stands
at n - 1, n, and so on; the row at position p drafts the token at p, so the first row's output is of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.nn import functional

from actors.heads.base import DraftHead
from actors.heads.eagle import low_middle_high
from actors.heads.format import HeadConfig, load_head
from actors.heads.layers import Core, DecoderLayer, RMSNorm, Rotary, core_like
from actors.heads.vocab import DraftVocabulary, ReducedHead

KeyValue = tuple[torch.Tensor, torch.Tensor]  # each [batch, kv_heads, length, head_dim]
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, queries [batch, heads, rows, head_dim], keys, values of the block's own rows) -> as the queries."""


@dataclass(frozen=True, slots=True)
class BlockConfig(HeadConfig):
    """Settings of a `block` head."""

    kind: ClassVar[str] = "block"

    core: Core = field(kw_only=True)
    block_size: int = field(kw_only=True)  # rows of a block, the newest token's among them
    window: int = field(default=0, kw_only=True)  # context positions that a block sees, the newest ones; 0: all

    def __post_init__(self) -> None:
        HeadConfig.__post_init__(self)
        if self.block_size < 2:
            raise ValueError(f"block_size {self.block_size} must be at least 2: the newest token and one to draft")
        if self.window < 0:
            raise ValueError(f"window {self.window} must not be negative; 0 means the whole context")


def block_config(
    target: Any, draft_vocab_size: int, feature_layers: tuple[int, ...] = (), num_layers: int = 2, block_size: int = 8,
    window: int = 0, name: str = "",
) -> BlockConfig:
    """A head for a target (its transformers configuration); without `feature_layers` a low, a middle and a high one."""
    config = target.get_text_config()
    depth = int(config.num_hidden_layers)
    return BlockConfig(
        int(config.hidden_size), int(config.vocab_size), depth, feature_layers or low_middle_high(depth),
        draft_vocab_size, name, core=core_like(config, num_layers), block_size=block_size, window=window,
    )


class BlockHead(DraftHead[BlockConfig]):
    """Runs blocks over context; how a block's rows attend is the caller's."""

    embedding: torch.Tensor

    def __init__(self, config: BlockConfig, embedding: torch.Tensor) -> None:
        """`embedding` [vocab_size, hidden]: the target's, not trained and not saved."""
        super().__init__()
        self.config = config
        hidden, core = config.hidden, config.core
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.fuse = nn.Linear(config.feature_size, hidden, bias=False)
        self.context_norm = RMSNorm(hidden, core.epsilon)
        self.mask = nn.Parameter(torch.zeros(hidden))  # the embedding of a place whose token is not known
        self.layers = nn.ModuleList(DecoderLayer(hidden, core) for _ in range(core.num_layers))
        self.norm = RMSNorm(hidden, core.epsilon)
        self.head = ReducedHead(hidden, config.draft_vocab_size)
        self._rotary = Rotary(core)

    @classmethod
    def fresh(
        cls, config: BlockConfig, embedding: torch.Tensor, output: torch.Tensor, vocabulary: DraftVocabulary,
        scale: float = 0.02,
    ) -> Self:
        """An untrained head (seed PyTorch before): noise of deviation `scale`, and of `output`, the target's
        [vocab, hidden], the rows of the drafted ids."""
        module = cls(config, embedding)
        for parameter in module.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=scale)
        nn.init.normal_(module.mask, std=scale)
        module.head.begin(vocabulary, output)
        return module

    @classmethod
    def load(cls, directory: Path | str, embedding: torch.Tensor, output: torch.Tensor) -> Self:
        """A stored head; `embedding` and `output` are the target's, [vocab, hidden]. Raises `BadHead`."""
        config, tensors = load_head(directory, BlockConfig)
        module = cls(config, embedding)
        module.fill(tensors, output, f"{directory}")
        return module

    def context(self, features: torch.Tensor, positions: torch.Tensor) -> list[KeyValue]:
        """Of each layer, keys and values of context positions.

        features [batch, length, feature_size], positions [length] or [batch, 1, length]. Each target layer's features
        are brought to one size first.
        """
        config = self.config
        apart = features.float().view(*features.shape[:-1], -1, config.hidden)
        alike = functional.rms_norm(apart, apart.shape[-1:], eps=config.core.epsilon)
        fused = self.context_norm(self.fuse(alike.flatten(-2)))

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.view(*x.shape[:-1], -1, config.core.head_dim).transpose(1, 2)

        return [
            (self._rotary(heads(layer.key(fused)), positions), heads(layer.value(fused))) for layer in self._layers()
        ]

    def embed(self, newest: torch.Tensor) -> torch.Tensor:
        """Blocks after the tokens `newest` [...] int64 -> rows [..., block_size, hidden]."""
        first = self.embedding[newest].float()[..., None, :]
        masks = self.mask.expand(*newest.shape, self.config.block_size - 1, -1)
        return torch.cat([first, masks], dim=-2)

    def states(self, rows: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """What the output head is applied to, [batch, length, hidden].

        rows [batch, length, hidden] of one block or many, positions [length] or [batch, 1, length].
        """
        x = rows
        for i, layer in enumerate(self._layers()):
            x = layer.finish(x, attend(i, *layer.qkv(x, self._rotary, positions)))
        normed: torch.Tensor = self.norm(x)
        return normed

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> logits of the drafted ids [..., draft_vocab_size]; the row at p drafts the token at p."""
        result: torch.Tensor = self.head(states)
        return result

    def forward(self, tokens: torch.Tensor, features: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """Many blocks of whole texts at once, for training: logits [batch, num_blocks, block_size - 1, draft_vocab].

        tokens [batch, length] int64, features [batch, length, feature_size] of the same positions, anchors
        [num_blocks] int64: positions of the blocks' known tokens, at least 1. Logits [:, j, i] draft the token at
        `anchors[j] + 1 + i`.
        """
        config = self.config
        length = tokens.shape[1]
        context = self.context(features, torch.arange(length, device=tokens.device))
        mask = sees(anchors, length, config)
        rows = self.embed(tokens[:, anchors]).flatten(1, 2)
        places = (anchors[:, None] + torch.arange(config.block_size, device=anchors.device)).flatten()

        def attend(i: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return over(context[i], queries, keys, values, mask)

        states = self.states(rows, places, attend)
        blocks = states.view(len(tokens), len(anchors), config.block_size, config.hidden)
        return self.logits(blocks[:, :, 1:])

    def _layers(self) -> Sequence[Any]:
        return list(self.layers)


def sees(anchors: torch.Tensor, length: int, config: BlockConfig) -> torch.Tensor:
    """Who sees whom when blocks of one text run side by side: [rows, length + rows] booleans, rows block by block.

    A block sees the context before its anchor, `config.window` positions of it, and itself.
    """
    owner = torch.arange(len(anchors), device=anchors.device).repeat_interleave(config.block_size)
    before = anchors[owner][:, None]
    position = torch.arange(length, device=anchors.device)[None]
    context = position < before
    if config.window:
        context &= position >= before - config.window
    return torch.cat([context, owner[:, None] == owner[None]], dim=1)


def over(
    context: KeyValue, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention of a block's rows over `context` and over their own keys and values; `mask`: as `sees`."""
    return functional.scaled_dot_product_attention(
        queries, torch.cat([context[0], keys], dim=2), torch.cat([context[1], values], dim=2), attn_mask=mask,
        enable_gqa=True,
    )

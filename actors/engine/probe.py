"""What a model's attention asks for, seen in a pass of one token, and what none of the engine's paths reproduces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

NAME = "outrider_probe"


class UnsupportedAttention(ValueError):
    """The model's attention does something that the engine cannot reproduce; one line that names the fix."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """One attention layer, as this shard has it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class Probed:
    """What was seen."""

    layers: list[Geometry]
    num_logits: int  # columns


def probe(model: Any, name: str, device: str) -> Probed:
    """The attention layers of `model`, and the columns of its logits, as this shard really has them.

    Read from a one-token pass: after tensor-parallel sharding the config no longer tells, and the split of heads
    over ranks may be uneven. Leaves the model with an attention of no use: set another one. `name` is for messages.

    Raises:
        UnsupportedAttention: soft-capped scores (Gemma 2), attention sinks, or values shaped unlike keys.
    """
    seen: dict[int, Geometry] = {}

    def spy(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any,
        softcap: float | None = None, s_aux: torch.Tensor | None = None, **__: Any,
    ) -> tuple[torch.Tensor, None]:
        if softcap:
            raise UnsupportedAttention(
                f"{name}: attention soft-capping (Gemma 2) is not supported: use a model without it"
            )
        if s_aux is not None:
            raise UnsupportedAttention(f"{name}: attention sinks (gpt-oss) are not supported: use a model without them")
        if key.shape != value.shape or query.shape[3] != key.shape[3]:
            raise UnsupportedAttention(f"{name}: keys and values differ in shape: use a model where they do not")
        seen[int(module.layer_idx)] = Geometry(query.shape[1], key.shape[1], key.shape[3])  # type: ignore[arg-type]
        return torch.zeros_like(query).transpose(1, 2).contiguous(), None

    AttentionInterface.register(NAME, spy)  # and no mask function: then transformers builds no mask
    model.set_attn_implementation(NAME)
    with torch.inference_mode():
        one = torch.zeros(1, 1, dtype=torch.long, device=device)
        logits = model(input_ids=one, position_ids=one, use_cache=False).logits
    return Probed([seen[i] for i in range(len(seen))], int(logits.shape[-1]))

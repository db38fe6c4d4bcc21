"""Attention over the device's paged store, plugged into any transformers model by its attention registry.

Only the attention function is registered, no mask function: transformers then builds no mask at all, which also
keeps it from looking at position ids on the host (a captured graph could not).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from actors.engine.gpu.contract import Geometry, Kernels
from actors.engine.gpu.store import GpuKV
from actors.engine.gpu.tensors import StepTensors

NAME = "outrider_gpu"
_PROBE = NAME + "_probe"


class UnsupportedAttention(ValueError):
    """The model's attention does something that the kernels do not reproduce."""


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """Everything about one step that does not change from layer to layer."""

    kv: GpuKV
    kernels: Kernels
    tensors: StepTensors


def gpu_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, num_heads, num_rows, head_dim]
    key: torch.Tensor,  # [1, num_kv_heads, num_rows, head_dim]
    value: torch.Tensor,  # [1, num_kv_heads, num_rows, head_dim]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    plan: GpuPlan | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write the step's keys and values, then attend; returns [1, num_rows, num_heads, head_dim]."""
    if plan is None:
        raise RuntimeError("attention on a device needs the step's plan: run the model through GpuRunner")
    _refuse(softcap, s_aux)
    layer: Any = module.layer_idx  # set by transformers on every attention module
    store = plan.kv.layers[layer]
    plan.kernels.write(store, key[0], value[0], plan.tensors)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return plan.kernels.attend(store, query[0], plan.tensors, scale, sliding_window)[None], None


def register() -> None:
    """Make `set_attn_implementation(NAME)` known to transformers. Idempotent."""
    AttentionInterface.register(NAME, gpu_attention)


def probe(model: Any, device: str) -> tuple[list[Geometry], int]:
    """Geometry of every attention layer, and the columns of the logits, as this shard really has them.

    Read from a one-token pass: after tensor-parallel sharding the config no longer tells.

    Raises:
        UnsupportedAttention: soft-capped scores (Gemma 2), attention sinks, or values shaped unlike keys.
    """
    seen: dict[int, Geometry] = {}

    def spy(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any,
        softcap: float | None = None, s_aux: torch.Tensor | None = None, **__: Any,
    ) -> tuple[torch.Tensor, None]:
        _refuse(softcap, s_aux)
        if key.shape != value.shape or query.shape[3] != key.shape[3]:
            raise UnsupportedAttention("keys and values differ in shape: use a model where they do not")
        seen[int(module.layer_idx)] = Geometry(query.shape[1], key.shape[1], key.shape[3])  # type: ignore[arg-type]
        return torch.zeros_like(query).transpose(1, 2).contiguous(), None

    AttentionInterface.register(_PROBE, spy)
    model.set_attn_implementation(_PROBE)
    with torch.inference_mode():
        one = torch.zeros(1, 1, dtype=torch.long, device=device)
        logits = model(input_ids=one, position_ids=one, use_cache=False).logits
    return [seen[i] for i in range(len(seen))], int(logits.shape[-1])


def _refuse(softcap: float | None, s_aux: torch.Tensor | None) -> None:
    if softcap:
        raise UnsupportedAttention("attention soft-capping (Gemma 2) is not supported: use a model without it")
    if s_aux is not None:
        raise UnsupportedAttention("attention sinks (gpt-oss) are not supported: use a model without them")

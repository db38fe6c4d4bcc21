"""Attention over the device's paged store, plugged into any transformers model by its attention registry.

Only the attention function is registered, no mask function: transformers then builds no mask at all, which also
keeps it from looking at position ids on the host (a captured graph could not).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from actors.engine.gpu.contract import Kernels
from actors.engine.gpu.store import GpuKV
from actors.engine.gpu.tensors import StepTensors

NAME = "outrider_gpu"


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
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write the step's keys and values, then attend; returns [1, num_rows, num_heads, head_dim]."""
    if plan is None:
        raise RuntimeError("attention on a device needs the step's plan: run the model through GpuRunner")
    layer: Any = module.layer_idx  # set by transformers on every attention module
    store = plan.kv.layers[layer]
    plan.kernels.write(store, key[0], value[0], plan.tensors)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return plan.kernels.attend(store, query[0], plan.tensors, scale, sliding_window)[None], None


def register() -> None:
    """Make `set_attn_implementation(NAME)` known to transformers. Idempotent."""
    AttentionInterface.register(NAME, gpu_attention)

"""The two floors of a forward pass: bytes that it must read, operations that it must do. Pure arithmetic.

Counted from the model's shape, whatever kernel runs it: every weight of every linear layer (the output head
among them) once, keys and values of the context, and two operations per multiply-add. Scales, norms and
activations are left out, and of expert layers only what are plain linears, so both are true lower bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from actors.loading.support import kv_geometry
from cluster.bench.engine.machine import Rates

WEIGHT_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "w8a8": 1.0, "int4": 0.5}
# The arithmetic a kind may use: its floor assumes the fastest of them.
ARITHMETIC = {
    "fp32": ("fp32",), "bf16": ("fp32", "bf16"), "int8": ("fp32", "bf16", "int8"),
    "w8a8": ("fp32", "bf16", "int8"), "int4": ("fp32", "bf16", "int8"),
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a pass must touch."""

    num_linear_weights: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def read_bytes(self, weights: str, kv_bytes: float, context: int) -> float:
        """Bytes of one pass after `context` tokens; `kv_bytes` is the size of one stored key or value number."""
        kv = 2 * self.num_layers * self.num_kv_heads * self.head_dim * context
        return self.num_linear_weights * WEIGHT_BYTES[weights] + kv * kv_bytes

    def operations(self, context: int, rows: int) -> float:
        """Operations of `rows` rows that each attend to about `context` keys."""
        attention = 2 * self.num_layers * self.num_heads * self.head_dim * context
        return 2.0 * rows * (self.num_linear_weights + attention)


@dataclass(frozen=True, slots=True)
class Floors:
    """Seconds that a pass needs at the very least, for either reason."""

    bandwidth_s: float
    operations_s: float


def floors(shape: ModelShape, rates: Rates, weights: str, kv_bytes: float, context: int, rows: int) -> Floors:
    """Both floors of one pass on a machine with these rates."""
    rate = max(rates.operations_per_s[name] for name in ARITHMETIC[weights])
    return Floors(
        shape.read_bytes(weights, kv_bytes, context) / rates.read_bytes_per_s,
        shape.operations(context, rows) / rate,
    )


def model_shape(config: Any) -> ModelShape:
    """Counted on a model without memory. `config` is a transformers configuration."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    linears = (m.weight for m in model.modules() if isinstance(m, (nn.Linear, Conv1D)))
    layers, kv_heads, head_dim = kv_geometry(config)
    heads = int(config.get_text_config().num_attention_heads)
    return ModelShape(sum(weight.numel() for weight in linears), layers, heads, kv_heads, head_dim)

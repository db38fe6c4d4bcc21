"""What heads are built of: decoder layers as Llama's, taken apart so that each kind can attend in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Core:
    """Shape of a stack of such layers."""

    num_layers: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rope_theta: float = 10000.0
    epsilon: float = 1e-5


def core_like(target: Any, num_layers: int = 1) -> Core:
    """Layers as wide as those of a target; `target`: its transformers configuration."""
    config = target.get_text_config()
    heads = int(config.num_attention_heads)
    rope = getattr(config, "rope_parameters", None) or {}
    theta = rope.get("rope_theta") or next((v["rope_theta"] for v in rope.values() if isinstance(v, dict)), 10000.0)
    return Core(
        num_layers, int(config.intermediate_size), heads, int(getattr(config, "num_key_value_heads", None) or heads),
        int(getattr(config, "head_dim", None) or config.hidden_size // heads), int(config.max_position_embeddings),
        float(theta), float(getattr(config, "rms_norm_eps", 1e-5)),
    )


class RMSNorm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(self, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self._epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> the same shape."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self._epsilon)


class Rotary(nn.Module):
    """Rotary positions (RoFormer, 2104.09864), halves turned against each other."""

    frequencies: torch.Tensor

    def __init__(self, core: Core) -> None:
        super().__init__()
        exponents = torch.arange(0, core.head_dim, 2, dtype=torch.float32) / core.head_dim
        self.register_buffer("frequencies", core.rope_theta**-exponents, persistent=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x [..., heads, length, head_dim], positions [length] or [..., 1, length] -> as x, turned."""
        angles = positions[..., None].float() * self.frequencies
        cosine, sine = angles.cos(), angles.sin()
        first, second = x.chunk(2, -1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class DecoderLayer(nn.Module):
    """One layer; `qkv`, some attention, `finish`."""

    def __init__(self, hidden: int, core: Core) -> None:
        super().__init__()
        self._core = core
        queries, keys = core.num_heads * core.head_dim, core.num_kv_heads * core.head_dim
        self.input_norm = RMSNorm(hidden, core.epsilon)
        self.query = nn.Linear(hidden, queries, bias=False)
        self.key = nn.Linear(hidden, keys, bias=False)
        self.value = nn.Linear(hidden, keys, bias=False)
        self.out = nn.Linear(queries, hidden, bias=False)
        self.mlp_norm = RMSNorm(hidden, core.epsilon)
        self.gate = nn.Linear(hidden, core.intermediate, bias=False)
        self.up = nn.Linear(hidden, core.intermediate, bias=False)
        self.down = nn.Linear(core.intermediate, hidden, bias=False)

    def qkv(
        self, x: torch.Tensor, rotary: Rotary, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [batch, length, hidden] -> queries [batch, heads, length, head_dim], keys and values of the kv heads."""
        y = self.input_norm(x)
        queries, keys, values = (
            linear(y).view(*y.shape[:-1], -1, self._core.head_dim).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        return rotary(queries, positions), rotary(keys, positions), values

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest: attended [batch, heads, length, head_dim] -> [batch, length, hidden]."""
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        y = self.mlp_norm(x)
        result: torch.Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return result

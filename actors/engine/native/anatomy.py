"""What the fused pass needs to know of a transformers model, read off its modules (shards included).

Only architectures whose code was compared with the fused pass are taken; any other model, or an unusual setting
of a known one, runs layer by layer in the framework over the same kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from actors.engine.native.library import ACTIVATIONS
from actors.loading.sharded import RowParallelLinear

# Norm weights of the Gemma family are stored as w - 1.
_OFFSETS = {
    "LlamaForCausalLM": 0.0, "MistralForCausalLM": 0.0, "Qwen2ForCausalLM": 0.0, "Qwen3ForCausalLM": 0.0,
    "Gemma3ForCausalLM": 1.0,
}  # fmt: skip
MOST_HEAD_DIM = 256
_FIXED_ROPE = ("default", "linear", "llama3", "yarn")  # tables that do not depend on the sequence's length


class NotFusable(Exception):
    """The model runs in the framework instead; says why."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear layer's weight [out, in] and bias [out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class LayerAnatomy:
    """One decoder layer (this rank's part). Norm weights are as they are multiplied."""

    query: Matrix
    key: Matrix
    value: Matrix
    out: Matrix
    gate: Matrix
    up: Matrix
    down: Matrix
    input_norm: torch.Tensor
    mlp_norm: torch.Tensor
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    after_attention: torch.Tensor | None
    after_mlp: torch.Tensor | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int  # 0: none
    scaling: float
    rope: str  # key of `Anatomy.rope`


@dataclass(frozen=True, slots=True)
class Anatomy:
    """A whole model (this rank's part)."""

    layers: list[LayerAnatomy]
    rope: dict[str, tuple[torch.Tensor, torch.Tensor]]  # cosine, sine: [positions, turned dimensions / 2] float32
    embedding: torch.Tensor  # [vocab, hidden]
    embedding_scale: float
    final_norm: torch.Tensor
    head: Matrix
    hidden: int
    activation: int
    epsilon: float
    logit_cap: float


def check_fusable(model: Any) -> None:
    """Raises `NotFusable`. Looks at the configuration alone, so all ranks come to the same answer."""
    name = type(model).__name__
    if name not in _OFFSETS:
        raise NotFusable(f"{name} has no fused pass")
    config = model.config.get_text_config()
    if _activation(config) not in ACTIVATIONS:
        raise NotFusable(f"activation {_activation(config)!r} has no fused pass")
    if getattr(config, "attn_logit_softcapping", None):
        raise NotFusable("attention soft-capping has no fused pass")
    other = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if other:
        raise NotFusable(f"{', '.join(sorted(other))} layers have no fused pass")
    kinds = model.model.rotary_emb.rope_type
    for kind in kinds.values() if isinstance(kinds, dict) else [kinds]:
        if kind not in _FIXED_ROPE:
            raise NotFusable(f"rotary positions of kind {kind!r} have no fused pass")
    attention = model.model.layers[0].self_attn
    if attention.head_dim > MOST_HEAD_DIM:
        raise NotFusable(f"head size {attention.head_dim} exceeds {MOST_HEAD_DIM}")


def is_fusable(model: Any) -> bool:
    """Whether `check_fusable` finds nothing against it."""
    try:
        check_fusable(model)
    except NotFusable:
        return False
    return True


def dissect(model: Any, num_positions: int) -> Anatomy:
    """Take `model` apart; its matrices are referred to, not copied.

    Raises `NotFusable`: by configuration and classes alone, so all ranks come to the same answer.
    """
    check_fusable(model)
    config = model.config.get_text_config()
    body, offset = model.model, _OFFSETS[type(model).__name__]
    rope = _rope_tables(body, num_positions)
    embedding = body.embed_tokens
    return Anatomy(
        layers=[_layer(layer, config, offset, rope) for layer in body.layers], rope=rope,
        embedding=embedding.weight.detach(),
        embedding_scale=float(getattr(embedding, "embed_scale", 1.0)),
        final_norm=_norm(body.norm, offset), head=_matrix(model.get_output_embeddings()),
        hidden=int(config.hidden_size), activation=ACTIVATIONS[_activation(config)],
        epsilon=float(config.rms_norm_eps), logit_cap=float(getattr(config, "final_logit_softcapping", None) or 0.0),
    )  # fmt: skip


def _activation(config: Any) -> Any:
    return getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)


def _layer(layer: Any, config: Any, offset: float, rope: dict[str, Any]) -> LayerAnatomy:
    attention, mlp = layer.self_attn, layer.mlp
    dim = int(attention.head_dim)
    query, key = _matrix(attention.q_proj), _matrix(attention.k_proj)
    kind = _layer_type(config, int(attention.layer_idx))
    window = getattr(config, "sliding_window", None) if kind != "full_attention" else None
    gemma = offset == 1.0  # its layers have four norms
    before_mlp = layer.pre_feedforward_layernorm if gemma else layer.post_attention_layernorm
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return LayerAnatomy(
        query=query, key=key, value=_matrix(attention.v_proj), out=_matrix(attention.o_proj),
        gate=_matrix(mlp.gate_proj), up=_matrix(mlp.up_proj), down=_matrix(mlp.down_proj),
        input_norm=_norm(layer.input_layernorm, offset), mlp_norm=_norm(before_mlp, offset),
        query_norm=None if query_norm is None else _norm(query_norm, offset),
        key_norm=None if key_norm is None else _norm(key_norm, offset),
        after_attention=_norm(layer.post_attention_layernorm, offset) if gemma else None,
        after_mlp=_norm(layer.post_feedforward_layernorm, offset) if gemma else None,
        num_heads=len(query.weight) // dim, num_kv_heads=len(key.weight) // dim, head_dim=dim,
        window=int(window or 0), scaling=float(attention.scaling), rope=kind if kind in rope else "",
    )  # fmt: skip


def _layer_type(config: Any, index: int) -> str:
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return str(kinds[index])
    return "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"


def _rope_tables(body: Any, num_positions: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Per layer type if the model has a rotation for each, else under ""."""
    rotary = body.rotary_emb
    kinds = rotary.rope_type if isinstance(rotary.rope_type, dict) else {"": rotary.rope_type}
    positions = torch.arange(num_positions)[None]
    like = torch.zeros(1, dtype=torch.float32)
    tables = {}
    for key in kinds:
        cosine, sine = rotary(like, positions, key) if key else rotary(like, positions)
        half = cosine.shape[-1] // 2
        tables[key] = (cosine[0, :, :half].contiguous(), sine[0, :, :half].contiguous())
    return tables


def _norm(module: nn.Module, offset: float) -> torch.Tensor:
    weight: torch.Tensor = module.weight.detach().float()  # type: ignore[operator]
    return (weight + offset).contiguous()


def _matrix(module: Any) -> Matrix:
    if isinstance(module, RowParallelLinear):
        return Matrix(_matrix(module.shard).weight, module._buffers["bias"])
    if type(module) is not nn.Linear:
        raise NotFusable(f"a {type(module).__name__} stands where a linear layer is expected")
    return Matrix(module.weight.detach(), None if module.bias is None else module.bias.detach())

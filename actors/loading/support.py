"""Which models can be served: rejected draft tokens must leave no trace in the cache, and attention must be plain.

Attention caches roll back by length. A recurrent state does not: it has swallowed the rejected tokens.
Such models, and those whose attention the engine does not compute, are refused by name before any weight is read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from actors.loading.errors import UnsupportedModel

ROLLBACK_LAYERS = frozenset({"full_attention", "sliding_attention", "attention"})
RECURRENT_FAMILIES = (
    "bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear",
    "lfm2", "mamba", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_next", "recurrent_gemma", "rwkv",
    "xlstm", "zamba", "zaya",
)
# A learned logit per head joins each softmax; the engine's CPU attention has no place for it.
SINK_FAMILIES = (
    "deepseek_v4", "flint", "gpt_oss", "granite_swa", "granitemoe_swa", "hy_v4", "mimo_v2_flash",
    "openai_privacy_filter",
)
_STUCK = "which cannot take back a rejected draft"
_USE = "use a decoder-only model whose layers are all attention, such as Llama, Qwen 3, Mistral or Gemma 3"


class KVGeometry(NamedTuple):
    """Shape of one token's keys (and of its values): the same in every layer."""

    num_layers: int
    num_kv_heads: int  # per layer
    head_dim: int


def check_supported(config: Any) -> None:
    """Refuse a model whose cache cannot roll back, or that is no causal language model.

    `config` is a transformers `PreTrainedConfig`.

    Raises:
        UnsupportedModel: one line that says why, and what to use instead.
    """
    text = config.get_text_config()
    family = str(text.model_type)
    if config.is_encoder_decoder or text.is_encoder_decoder:
        raise UnsupportedModel(f"{family} is an encoder-decoder model: {_USE}")
    if family.startswith(RECURRENT_FAMILIES):
        raise UnsupportedModel(f"{family} keeps a recurrent state, {_STUCK}: {_USE}")
    if family in SINK_FAMILIES:
        raise UnsupportedModel(f"{family} has attention sinks, which the engine does not compute: {_USE}")
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ()
    other = sorted({str(kind) for kind in kinds} - ROLLBACK_LAYERS)
    if other:
        raise UnsupportedModel(f"{family} has {', '.join(other)} layers, {_STUCK}: {_USE}")
    if getattr(text, "kv_lora_rank", None):
        raise UnsupportedModel(f"{family} caches latents instead of keys and values: {_USE}")
    if getattr(text, "num_kv_shared_layers", None):
        raise UnsupportedModel(f"{family} has layers that read one another's cache: {_USE}")
    if not _is_causal_lm(config):
        raise UnsupportedModel(f"{config.model_type} is not a causal language model: {_USE}")


def max_context_tokens(config: Any) -> int:
    """Positions that the model was made for. Raises UnsupportedModel if its configuration does not say."""
    text = config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(text, name, None)
        if value:
            return int(value)
    raise UnsupportedModel(f"{text.model_type} does not say its context length: set max_context_tokens")


def kv_geometry(config: Any) -> KVGeometry:
    """Layers, KV heads and head size of the whole, unsharded model.

    Raises:
        UnsupportedModel: the layers differ in shape.
    """
    text = config.get_text_config()
    num_heads = int(text.num_attention_heads)
    kv_heads = getattr(text, "num_key_value_heads", None) or num_heads
    if getattr(text, "multi_query", False) and getattr(text, "num_key_value_heads", None) is None:
        kv_heads = 1
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // num_heads
    other = getattr(text, "global_head_dim", None) or head_dim
    if not isinstance(kv_heads, int) or other != head_dim:
        raise UnsupportedModel(f"the layers of {text.model_type} differ in KV shape: {_USE}")
    return KVGeometry(int(text.num_hidden_layers), kv_heads, int(head_dim))


def _is_causal_lm(config: Any) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if config.model_type in ("bert", "roberta", "electra", "xlnet", "xlm") and not config.is_decoder:
        return False
    return config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

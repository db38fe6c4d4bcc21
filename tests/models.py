"""Tiny randomly initialised models of several architectures, made on the spot: no files, no hub."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers as tf

from actors.engine.make import make_runner
from actors.engine.step import ModelRunner
from actors.spec import ModelSpec

VOCAB = 97
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


def _config(architecture: str) -> Any:
    grouped = {**_COMMON, "num_key_value_heads": 2}
    match architecture:
        case "llama":
            return tf.LlamaConfig(**grouped)
        case "qwen3":
            return tf.Qwen3Config(**grouped, head_dim=16)
        case "mistral-sliding":
            return tf.MistralConfig(**grouped, sliding_window=48)
        case "gpt2":
            return tf.GPT2Config(
                vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, n_positions=1024, bos_token_id=0, eos_token_id=1
            )
        case "neox":
            return tf.GPTNeoXConfig(**_COMMON)
        case "gemma3":
            return tf.Gemma3TextConfig(**grouped, head_dim=16, sliding_window=48, query_pre_attn_scalar=16)
    raise ValueError(architecture)


ARCHITECTURES = ("llama", "qwen3", "mistral-sliding", "gpt2", "neox", "gemma3")


def tiny_model(architecture: str, seed: int = 0, scale: float = 4.0) -> Any:
    """A causal LM with random weights, scaled up so that its laws are far from uniform."""
    torch.manual_seed(seed)
    model = tf.AutoModelForCausalLM.from_config(_config(architecture), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed" not in name and "wte" not in name and "wpe" not in name:
                parameter.mul_(scale)
    return model


@functools.lru_cache(maxsize=16)
def tiny_runner(
    architecture: str, weights: str = "fp32", kv_tokens: int = 2048, seed: int = 0, scale: float = 4.0,
    kernels: str = "native", **changes: Any,
) -> ModelRunner:
    """A runner over `tiny_model`; cached, so KV contents are whatever the last test left."""
    spec = tiny_spec(weights=weights, kv_tokens=kv_tokens, kernels=kernels, **changes)
    return make_runner(tiny_model(architecture, seed, scale), spec)


def tiny_spec(**changes: Any) -> ModelSpec:
    """A spec for tiny models."""
    return ModelSpec(**{"tier": 1, "model": "tiny", "kv_tokens": 2048, "max_context_tokens": 1024, **changes})

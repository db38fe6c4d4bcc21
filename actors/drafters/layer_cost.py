"""What a pass through some of a model's layers costs beside a whole one: the share of the weights that it reads."""

from __future__ import annotations

from typing import Any


def pass_cost(config: Any, num_layers: int, exit_parameters: int | None = None) -> float:
    """Of a pass through `num_layers` layers; `config`: the target's, of transformers.

    `exit_parameters`: of an exit in place of the model's own output head; None: that one is read.
    """
    text = config.get_text_config()
    own_head = int(text.vocab_size) * int(text.hidden_size)
    layer = _layer_parameters(text)
    whole = int(text.num_hidden_layers) * layer + own_head
    return (num_layers * layer + (own_head if exit_parameters is None else exit_parameters)) / whole


def _layer_parameters(text: Any) -> int:
    """Of a layer of the Llama kind; of others it is near enough for taking turns."""
    hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
    head_dim = int(getattr(text, "head_dim", None) or hidden // heads)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    inner = int(getattr(text, "intermediate_size", None) or 4 * hidden)
    return hidden * (2 * heads + 2 * kv_heads) * head_dim + 3 * hidden * inner

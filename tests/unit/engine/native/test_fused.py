"""The fused pass against transformers' own modules, over every architecture and setting it claims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from actors.engine.make import make_runner
from actors.engine.native.anatomy import NotFusable, dissect
from actors.engine.native.fused import FusedRunner
from actors.engine.probe import UnsupportedAttention
from actors.engine.runner import LocalRunner
from tests.models import tiny_spec
from tests.tape import Tape

BASE: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 1,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 128}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}
CONFIGS = {
    "llama": tf.LlamaConfig(**BASE),
    "llama-tied": tf.LlamaConfig(**BASE, tie_word_embeddings=True),
    "llama-biases": tf.LlamaConfig(**BASE, attention_bias=True, mlp_bias=True),
    "llama-3-rope": tf.LlamaConfig(**BASE, rope_parameters=LLAMA3),
    "llama-yarn": tf.LlamaConfig(**BASE, rope_parameters=YARN),
    "llama-odd-widths": tf.LlamaConfig(
        **{**BASE, "hidden_size": 60, "intermediate_size": 77, "num_attention_heads": 6, "num_key_value_heads": 3,
           "head_dim": 20}
    ),
    "llama-one-kv-head": tf.LlamaConfig(
        **{**BASE, "num_attention_heads": 16, "num_key_value_heads": 1, "head_dim": 16}
    ),
    "mistral": tf.MistralConfig(**BASE, sliding_window=None),
    "mistral-sliding": tf.MistralConfig(**BASE, sliding_window=50),
    "qwen2": tf.Qwen2Config(**BASE),
    "qwen2-sliding": tf.Qwen2Config(**BASE, use_sliding_window=True, sliding_window=40, max_window_layers=1),
    "qwen3": tf.Qwen3Config(**BASE, head_dim=32),
    "gemma3": tf.Gemma3TextConfig(**BASE, head_dim=32, sliding_window=48, query_pre_attn_scalar=16),
    "gemma3-capped": tf.Gemma3TextConfig(**BASE, head_dim=16, sliding_window=48, final_logit_softcapping=5.0),
}  # fmt: skip


def model_of(config: Any) -> Any:
    torch.manual_seed(1)
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                parameter.mul_(4.0)
            elif parameter.ndim == 1:  # norms and biases that do something
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def ids_of(count: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 97, count).astype(np.int32)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_agree_with_transformers(name: str) -> None:
    model = model_of(CONFIGS[name])
    ids = ids_of(170)
    with torch.inference_mode():
        plain = model(torch.from_numpy(ids).long()[None]).logits[0]
    runner = make_runner(model, tiny_spec())
    assert isinstance(runner, FusedRunner)
    fused = Tape(runner, 1, seed=8).feed(0, ids, 33)
    assert (plain - fused).abs().max() < 3e-4


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_small_keys_and_values_stay_close(kv_dtype: str) -> None:
    model = model_of(CONFIGS["llama"])
    ids = ids_of(170)
    with torch.inference_mode():
        plain = torch.log_softmax(model(torch.from_numpy(ids).long()[None]).logits[0], -1)
    runner = make_runner(model, tiny_spec(kv_dtype=kv_dtype))
    close = torch.log_softmax(Tape(runner, 1, seed=8).feed(0, ids, 33), -1)
    assert (plain.exp() * (plain - close)).sum(-1).mean() < 1e-2


@pytest.mark.parametrize("page_tokens", [4, 16, 128])
def test_logits_do_not_depend_on_who_used_a_page_before(page_tokens: int) -> None:
    """Whatever another sequence left in a page, NaN included, is out of sight."""
    ids = ids_of(100)
    runner = make_runner(model_of(CONFIGS["mistral-sliding"]), tiny_spec(page_tokens=page_tokens, kv_tokens=1024))
    clean = Tape(runner, 1, seed=1, page_tokens=page_tokens).feed(0, ids, 7)
    for stores in runner.kv._stores:
        for store in stores:
            store.fill_(float("nan"))
    assert torch.equal(Tape(runner, 1, seed=2, page_tokens=page_tokens).feed(0, ids, 9), clean)


def test_what_has_no_fused_pass_runs_layer_by_layer() -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = model_of(tf.LlamaConfig(**BASE, rope_parameters=dynamic))
    with pytest.raises(NotFusable, match="dynamic"):
        dissect(model, 1024)
    assert isinstance(make_runner(model, tiny_spec()), LocalRunner)


def test_an_unknown_module_inside_a_known_architecture_runs_layer_by_layer(caplog: pytest.LogCaptureFixture) -> None:
    class Peculiar(torch.nn.Linear):
        """Who knows what it does besides."""

    model = model_of(CONFIGS["llama"])
    model.model.layers[1].mlp.up_proj.__class__ = Peculiar
    with caplog.at_level("INFO", "actors.engine.make"):
        runner = make_runner(model, tiny_spec())
    assert isinstance(runner, LocalRunner)
    assert "tiny runs layer by layer: a Peculiar stands where a linear layer is expected" in caplog.text


def test_positions_that_depend_on_the_batch_are_limited_to_where_they_do_not() -> None:
    scaled = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 512}
    model = model_of(tf.LlamaConfig(**BASE, rope_parameters=scaled))
    with pytest.raises(UnsupportedAttention, match="max_context_tokens to at most 512"):
        make_runner(model, tiny_spec())


def test_a_step_wider_than_the_workspace_still_runs() -> None:
    runner = make_runner(model_of(CONFIGS["llama"]), tiny_spec(max_batch_tokens=16))
    ids = ids_of(100)
    assert torch.equal(Tape(runner, 1, seed=1).feed(0, ids, 100), Tape(runner, 1, seed=1).feed(0, ids, 10))

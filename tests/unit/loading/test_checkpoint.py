"""Finding, refusing and loading checkpoints, with tiny random models."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoConfig,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    PreTrainedConfig,
    T5Config,
)

from actors.loading.checkpoint import (
    ModelNotFound,
    UnsupportedModel,
    check_supported,
    kv_geometry,
    load_config,
    load_generation_config,
    load_model,
    max_context_tokens,
    resolve,
)
from actors.spec import ModelSpec

TINY = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=128, eos_token_id=[2, 5],
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    LlamaForCausalLM(TINY).save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_model_is_loaded_for_inference_in_the_asked_dtype(checkpoint: str, dtype: str) -> None:
    num_threads = torch.get_num_threads()
    model = load_model(ModelSpec(tier=0, model=checkpoint, dtype=dtype))
    assert {str(p.dtype) for p in model.parameters()} == {f"torch.{dtype}"}
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert torch.get_num_threads() == num_threads


def test_geometry_context_and_generation_settings_come_from_the_checkpoint(checkpoint: str) -> None:
    config = load_config(checkpoint)
    assert kv_geometry(config) == (2, 2, 16)
    assert max_context_tokens(config) == 128
    settings = load_generation_config(checkpoint)
    assert settings is not None and settings.eos_token_id == [2, 5]


def test_geometry_is_right_for_models_without_grouped_heads() -> None:
    config = GPT2Config(n_layer=3, n_head=4, n_embd=32, n_positions=77)
    assert kv_geometry(config) == (3, 4, 8)
    assert max_context_tokens(config) == 77


def test_layers_of_different_shape_are_refused() -> None:
    config = SimpleNamespace(
        model_type="odd", num_attention_heads=4, hidden_size=32, head_dim=8, global_head_dim=16
    )
    config.get_text_config = lambda: config
    with pytest.raises(UnsupportedModel, match="layers of odd differ in KV shape"):
        kv_geometry(config)


def hybrid_llama() -> PreTrainedConfig:
    config = LlamaConfig(num_hidden_layers=2)
    config.layer_types = ["full_attention", "linear_attention"]
    return config


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (MambaConfig(), "mamba keeps a recurrent state, which cannot take back a rejected draft"),
        (AutoConfig.for_model("qwen3_next"), "qwen3_next keeps a recurrent state"),
        (AutoConfig.for_model("jamba"), "jamba keeps a recurrent state"),
        (AutoConfig.for_model("recurrent_gemma"), "recurrent_gemma keeps a recurrent state"),
        (AutoConfig.for_model("lfm2"), "lfm2 keeps a recurrent state"),
        (AutoConfig.for_model("minimax"), "minimax has linear_attention layers"),
        (hybrid_llama(), "llama has linear_attention layers"),
        (T5Config(), "t5 is an encoder-decoder model"),
        (AutoConfig.for_model("deepseek_v3"), "deepseek_v3 caches latents"),
        (AutoConfig.for_model("gpt_oss"), "gpt_oss has attention sinks"),
        (AutoConfig.for_model("bert"), "bert is not a causal language model"),
        (AutoConfig.for_model("vit"), "vit is not a causal language model"),
    ],
    ids=lambda value: value.model_type if isinstance(value, PreTrainedConfig) else "",
)
def test_models_that_cannot_roll_back_are_refused_in_one_line(config: PreTrainedConfig, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=re.escape(reason)) as refusal:
        check_supported(config)
    assert "\n" not in str(refusal.value) and "such as Llama" in str(refusal.value)


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2", "phi3", "olmo2"]
)
def test_attention_models_are_accepted(family: str) -> None:
    check_supported(AutoConfig.for_model(family))


def test_a_refused_model_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    MambaConfig().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="recurrent"):
        load_model(ModelSpec(tier=0, model=str(tmp_path)))


def test_names_that_lead_nowhere_say_what_to_do(tmp_path: Path, checkpoint: str) -> None:
    (tmp_path / "weights.bin").touch()
    for model, reason in (
        (str(tmp_path), "has no config.json"),
        (str(tmp_path / "weights.bin"), "is a file: give the directory of a Hugging Face checkpoint, or a .gguf file"),
        ("./nowhere", "check the path"),
        ("", "name is empty"),
    ):
        with pytest.raises(ModelNotFound, match=reason):
            resolve(model)
    assert resolve("org/model") == "org/model"
    assert resolve(checkpoint) == Path(checkpoint)


def test_a_checkpoint_without_weights_is_called_incomplete(tmp_path: Path) -> None:
    TINY.save_pretrained(tmp_path)
    with pytest.raises(ModelNotFound, match="incomplete"):
        load_model(ModelSpec(tier=0, model=str(tmp_path)))


def test_a_checkpoint_that_lacks_a_weight_is_refused_instead_of_filled_with_noise(tmp_path: Path) -> None:
    model = LlamaForCausalLM(TINY)
    state = model.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ModelNotFound, match=r"lacks 1 of its weights \(model.layers.1.mlp.up_proj.weight") as refusal:
        load_model(ModelSpec(tier=0, model=str(tmp_path)))
    assert "\n" not in str(refusal.value)


def test_a_tied_output_head_is_not_missing(tmp_path: Path) -> None:
    config = LlamaConfig(**{**TINY.to_dict(), "tie_word_embeddings": True})
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    model = load_model(ModelSpec(tier=0, model=str(tmp_path)))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_an_unknown_architecture_or_dtype_is_refused(tmp_path: Path, checkpoint: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no_such_model"}')
    with pytest.raises(UnsupportedModel, match="no_such_model"):
        load_config(str(tmp_path))
    with pytest.raises(ValueError, match="use one of float32"):
        load_model(ModelSpec(tier=0, model=checkpoint, dtype="fp8"))

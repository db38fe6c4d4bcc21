"""Models of quantised checkpoints, whoever made them: greedy ids, no marks left, mistakes named.

A kind is skipped where its package is absent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaForCausalLM

from actors.loading import quantised
from actors.loading.checkpoint import UnsupportedModel, load_model
from tests.models import tiny_model, tiny_spec
from tests.unit.loading.greedy import PROMPTS, count_near_ties, engine_ids, num_distinct
from tests.unit.loading.quantisers import (
    SCHEMES,
    bnb_config,
    even_model,
    own,
    save_compressed,
    save_fp8,
    save_quantised,
    spec,
    torchao_config,
    with_settings,
)

Save = Callable[[Path], Any]
# How to make the checkpoint, the package, and how far its own kernels (bf16 or rounded activations) may be off.
ALL: dict[str, tuple[Save, str | None, float]] = {
    "bnb-int8": (lambda d: save_quantised(even_model(), bnb_config("int8"), d), "bitsandbytes", 0.15),
    "bnb-nf4": (lambda d: save_quantised(even_model(), bnb_config("nf4"), d), "bitsandbytes", 0.1),
    "bnb-fp4": (lambda d: save_quantised(even_model(), bnb_config("fp4"), d), "bitsandbytes", 0.1),
    "bnb-nf4-nested": (lambda d: save_quantised(even_model(), bnb_config("nf4-nested"), d), "bitsandbytes", 0.1),
    "ao-int8": (lambda d: save_quantised(even_model(), torchao_config("int8"), d), "torchao", 1e-3),
    "ao-int4": (lambda d: save_quantised(even_model(), torchao_config("int4"), d), "torchao", 1e-3),
    "ao-fp8": (lambda d: save_quantised(even_model(), torchao_config("fp8"), d), "torchao", 1e-3),
    "ct-w4a16": (lambda d: save_compressed(d, SCHEMES["w4a16"]), "compressed_tensors", 1e-3),
    "ct-mixed": (lambda d: save_compressed(d, SCHEMES["mixed"]), "compressed_tensors", 1e-3),
    "fp8": (lambda d: save_fp8(d, (32, 32)), None, 1e-3),
}


@pytest.fixture(params=ALL)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, float]:
    """A quantised checkpoint, and the tolerance for its own kernels."""
    save, package, tolerance = ALL[request.param]
    if package is not None:
        pytest.importorskip(package, reason=f"{package} is not installed")
    save(tmp_path)
    return tmp_path, tolerance


@pytest.mark.exactness
def test_greedy_ids_are_those_of_transformers_on_the_quantised_checkpoint(made: tuple[Path, float]) -> None:
    directory, tolerance = made
    ids = engine_ids(load_model(tiny_spec(model=str(directory))), PROMPTS, 16)
    assert num_distinct(ids) > 15
    assert count_near_ties(own(directory), PROMPTS, ids, tolerance) <= (1 if tolerance < 0.01 else 8)


def test_no_mark_of_the_quantiser_is_left(made: tuple[Path, float], tmp_path_factory: pytest.TempPathFactory) -> None:
    directory, _ = made
    model = load_model(spec(directory))
    plain = tiny_model("llama")
    assert {type(module) for module in model.modules()} == {type(module) for module in plain.modules()}
    assert {name for name in vars(model) if "quant" in name or "loaded_in" in name} == set()
    assert {key for key in model.config.to_dict() if "quant" in key} == set()
    assert not any(hasattr(module, "quantization_scheme") for module in model.modules())
    again = tmp_path_factory.mktemp("saved")
    model.save_pretrained(again)
    reloaded, report = LlamaForCausalLM.from_pretrained(again, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    state = model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in reloaded.state_dict().items())


def test_the_model_is_made_for_inference_in_the_asked_dtype(made: tuple[Path, float]) -> None:
    directory, _ = made
    exact = load_model(spec(directory)).state_dict()
    model = load_model(spec(directory, dtype="bfloat16"))
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert all(torch.equal(tensor, exact[name].bfloat16()) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "package"),
    [
        ({"quant_method": "torchao"}, "torchao"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
    ],
)
def test_a_missing_package_is_named_with_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], package: str
) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    with_settings(tmp_path, model.state_dict(), settings)
    monkeypatch.setattr(quantised.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedModel, match=rf"pip install {package}$") as refusal:
        load_model(spec(tmp_path))
    assert "\n" not in str(refusal.value)


def test_rounded_activations_are_said_to_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_fp8(tmp_path, (32, 32))
    with caplog.at_level(logging.WARNING):
        load_model(spec(tmp_path))
    assert [record for record in caplog.records if "round activations" in record.message]


def test_a_quantised_checkpoint_without_its_tensors_is_refused(tmp_path: Path) -> None:
    save_fp8(tmp_path, (32, 32))
    state = load_file(tmp_path / "model.safetensors")
    del state["model.layers.0.mlp.up_proj.weight"], state["model.layers.0.mlp.up_proj.weight_scale_inv"]
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="lacks 1 of its weights") as refusal:
        load_model(spec(tmp_path))
    assert "\n" not in str(refusal.value)


def test_layers_keep_their_biases(tmp_path: Path) -> None:
    """Qwen 2 has biases in attention: they stand beside the packed parts."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )
    model = Qwen2ForCausalLM(config)
    nn.init.normal_(model.model.layers[0].self_attn.q_proj.bias)
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    state[name], state[f"{name}_scale_inv"] = state[name].to(torch.float8_e4m3fn), torch.ones(2, 2)
    for other in [key for key in state if "proj.weight" in key and name not in key and not key.endswith("scale_inv")]:
        rows, cols = state[other].shape
        state[other] = state[other].to(torch.float8_e4m3fn)
        state[f"{other}_scale_inv"] = torch.ones(rows // 32, cols // 32)
    with_settings(tmp_path, state, {"quant_method": "fp8", "weight_block_size": [32, 32]})
    loaded = load_model(spec(tmp_path)).state_dict()
    assert torch.equal(loaded[name.replace("weight", "bias")], model.state_dict()[name.replace("weight", "bias")])

"""Weights of checkpoints that other packages quantised are those packages' own, to the bit.

Each test is skipped where its package is absent.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from actors.loading.checkpoint import UnsupportedModel, load_model
from tests.models import tiny_model
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
)

# --- bitsandbytes


BNB_KINDS = ["int8", "nf4", "nf4-nested", "fp4", "fp4-nested"]


@pytest.mark.parametrize(("architecture", "dtype"), [("llama", torch.float32), ("gpt2", torch.bfloat16)])
@pytest.mark.parametrize("kind", BNB_KINDS)
def test_bitsandbytes_values_are_its_own(tmp_path: Path, kind: str, architecture: str, dtype: torch.dtype) -> None:
    """Its arithmetic as PyTorch operations; the CPU kernel is wrong where rows do not end with a block."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from bitsandbytes import functional
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute

    save_quantised(tiny_model(architecture).to(dtype), bnb_config(kind), tmp_path)
    theirs, original = own(tmp_path), tiny_model(architecture)
    loaded = load_model(spec(tmp_path)).state_dict()
    num_quantised = 0
    for name, module in theirs.named_modules():
        if not hasattr(module, "weight"):
            continue
        weight = module.weight.data
        match type(module.weight).__name__:
            case "Int8Params":
                wanted = functional.int8_vectorwise_dequant(weight, module.weight.SCB)
            case "Params4bit":
                state = module.weight.quant_state
                absmax = state.absmax
                if state.nested:
                    absmax = functional.dequantize_blockwise(absmax, state.state2) + state.offset
                wanted = _dequantize_4bit_compute(
                    weight.reshape(-1), absmax.float(), state.code, state.blocksize, state.shape, state.dtype
                )
            case _:
                wanted = weight
        quantised_here = wanted is not weight
        num_quantised += quantised_here
        if quantised_here and type(original.get_submodule(name)).__name__ == "Conv1D":
            wanted = wanted.t()
        assert torch.equal(loaded[f"{name}.weight"], wanted.float()), name
    assert num_quantised >= 12


def test_a_bitsandbytes_model_saved_after_use_on_a_cpu_is_refused(tmp_path: Path) -> None:
    """Version 0.50.2 repacks its weights for the CPU at the first pass, and saves scales in the wrong order."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    save_quantised(even_model(), bnb_config("nf4"), tmp_path, use=True)
    if all(t.ndim == 1 for name, t in load_file(tmp_path / "model.safetensors").items() if name.endswith("absmax")):
        pytest.skip("this bitsandbytes, on this processor, saves what it loaded")
    with pytest.raises(ValueError, match="saved after use on a CPU") as refusal:
        load_model(spec(tmp_path))
    assert "\n" not in str(refusal.value)


# --- torchao


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["int8", "int8-rounded-activations", "fp8", "int4"])
def test_torchao_values_are_scale_times_integer_less_zero(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    save_quantised(tiny_model("llama").to(dtype), torchao_config(kind), tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    loaded = load_model(spec(tmp_path)).state_dict()
    layers = [name.removesuffix("_weight_qdata") for name in state if name.endswith("_weight_qdata")]
    assert len(layers) >= 12
    for layer in layers:
        integers = state[f"{layer}_weight_qdata"].float()
        scale = state[f"{layer}_weight_scale"].float()
        zero = state.get(f"{layer}_weight_zero_point", torch.zeros(1)).float()
        if zero.ndim == 2:
            zero = zero.repeat_interleave(integers.shape[1] // zero.shape[1], 1)
        scale = scale.repeat_interleave(integers.shape[1] // scale.shape[1], 1)
        assert torch.equal(loaded[f"{layer}weight"], (integers - zero) * scale), layer


def test_torchaos_plain_int4_made_for_gpus_is_read_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Int4Tensor, Int4WeightOnlyConfig
    from transformers import TorchAoConfig

    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    state, wanted = dict(model.state_dict()), {}
    for name in [name for name in state if "proj" in name]:
        num_outputs, num_inputs = state[name].shape
        integers = torch.randint(-8, 8, (num_outputs, num_inputs), dtype=torch.int8)
        packed = (integers[:, 1::2] << 4) | (integers[:, ::2] & 15)
        scale, zero = torch.rand(num_inputs // 32, num_outputs) / 8, torch.randn(num_inputs // 32, num_outputs) / 8
        state[name] = Int4Tensor(packed, scale, zero, [1, 32], torch.Size((num_outputs, num_inputs)))
        wide = [x.t().repeat_interleave(32, 1) for x in (scale, zero)]
        wanted[name] = integers * wide[0] + wide[1]
    tensors, metadata = flatten_tensor_state_dict(state)
    save_file({k: v.contiguous() for k, v in tensors.items()}, tmp_path / "model.safetensors", metadata)
    settings = TorchAoConfig(Int4WeightOnlyConfig(group_size=32)).to_dict()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    loaded = load_model(spec(tmp_path)).state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in wanted.items())


# --- compressed-tensors


def fields(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Integers of 4 or 8 bits in int32 words along the last dimension, low ones first, less half their range."""
    mask, middle = (1 << bits) - 1, 1 << (bits - 1)
    rows = [[(word >> i & mask) - middle for word in row for i in range(0, 32, bits)] for row in words.tolist()]
    return torch.tensor(rows, dtype=torch.float32)


def compressed_values(state: dict[str, torch.Tensor], layer: str) -> torch.Tensor:
    """[out, in]: `(integer - zero) * scale` in fp32, from the parts of a layer."""
    scale = state[f"{layer}.weight_scale"].float()
    if f"{layer}.weight_packed" not in state:
        integers = state[f"{layer}.weight"].float()
    else:
        packed = state[f"{layer}.weight_packed"]
        integers = fields(packed, 32 * packed.shape[1] // int(state[f"{layer}.weight_shape"][1]))
    zero = state.get(f"{layer}.weight_zero_point")
    if zero is not None:
        integers = integers - fields(zero.t(), 4).t().repeat_interleave(integers.shape[1] // scale.shape[1], 1)
    return integers * scale.repeat_interleave(integers.shape[1] // scale.shape[1], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_compressed_tensors_values_are_scale_times_integer_less_zero(
    tmp_path: Path, scheme: str, dtype: torch.dtype
) -> None:
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    save_compressed(tmp_path, SCHEMES[scheme], dtype)
    state, original = load_file(tmp_path / "model.safetensors"), tiny_model("llama").to(dtype).state_dict()
    loaded = load_model(spec(tmp_path)).state_dict()
    layers = {name.removesuffix(".weight_scale") for name in state if name.endswith(".weight_scale")}
    assert len(layers) == 21
    for layer in layers:
        weight = compressed_values(state, layer)
        assert torch.equal(loaded[f"{layer}.weight"], weight), layer
        error = (weight - original[f"{layer}.weight"].float()).abs().max() / weight.abs().max()
        assert error < 0.2, "the test's own reading must make sense"
    others = [name for name in original if name.removesuffix(".weight") not in layers]
    assert all(torch.equal(loaded[name], original[name].float()) for name in others)


def test_a_layer_that_no_config_group_covers_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    save_compressed(tmp_path, SCHEMES["mixed"])
    config = json.loads((tmp_path / "config.json").read_text())
    groups = config["quantization_config"]["config_groups"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {
        **config["quantization_config"], "config_groups": {"a": groups[sorted(groups)[0]]},
    }}))
    with pytest.raises(UnsupportedModel, match="no config group tells how model.layers.0."):
        load_model(spec(tmp_path))


def test_settings_that_the_package_gave_up_are_refused_in_one_line(tmp_path: Path) -> None:
    """Activation order by groups was removed from it; files that have it would need an index it no longer reads."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    save_compressed(tmp_path, SCHEMES["w4a16"])
    config = json.loads((tmp_path / "config.json").read_text())
    for group in config["quantization_config"]["config_groups"].values():
        group["weights"]["actorder"] = "group"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="refuses its settings: .*actorder='group' has been removed") as refusal:
        load_model(spec(tmp_path))
    assert "\n" not in str(refusal.value)


# --- fp8 of transformers


@pytest.mark.parametrize(("block", "mx"), [((32, 32), False), ((1, 32), True)])
def test_fp8_values_are_fp8_times_the_scale_of_their_block(tmp_path: Path, block: tuple[int, int], mx: bool) -> None:
    wanted = save_fp8(tmp_path, block, mx)
    loaded = load_model(spec(tmp_path)).state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in wanted.items())

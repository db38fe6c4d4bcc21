"""Checkpoints that other packages quantised: values, marks, greedy ids; each skipped where its package is absent."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from actors.loading import quantised
from actors.loading.checkpoint import UnsupportedModel, load_model
from actors.spec import ModelSpec
from tests.models import tiny_model, tiny_spec
from tests.unit.loading.greedy import PROMPTS, count_near_ties, engine_ids, num_distinct


def spec(directory: Path, **changes: Any) -> ModelSpec:
    return ModelSpec(tier=0, model=str(directory), **changes)


def own(directory: Path) -> Any:
    """transformers' own model of a checkpoint, still quantised."""
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, device_map={"": "cpu"}).eval()


def even_model() -> Any:
    """A tiny model whose widths are multiples of 64, which bitsandbytes' CPU kernels need."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 1024}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=97, **sizes, **heads)).eval()
    for name, parameter in model.named_parameters():
        if "proj" in name or "lm_head" in name:
            parameter.data.mul_(4)
    return model


def save_quantised(model: Any, config: Any, directory: Path, use: bool = False) -> None:
    """`model` quantised by transformers on the fly and saved, before or after (`use`) a forward pass."""
    plain = directory / "plain"
    model.save_pretrained(plain)
    made = AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=config, dtype=model.dtype, device_map={"": "cpu"}
    )
    if use:
        with torch.inference_mode():
            made(torch.tensor(PROMPTS[:1]))
    made.save_pretrained(directory)


def with_settings(directory: Path, state: dict[str, torch.Tensor], settings: dict[str, Any]) -> None:
    """Put `state` and the quantisation `settings` into a saved checkpoint."""
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, directory / "model.safetensors",
              {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))


# --- bitsandbytes


def bnb_config(kind: str) -> Any:
    from transformers import BitsAndBytesConfig

    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    name, _, nested = kind.partition("-")
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=name, bnb_4bit_use_double_quant=bool(nested),
        bnb_4bit_compute_dtype=torch.float32,
    )


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


def torchao_config(kind: str) -> Any:
    from torchao import quantization as ao
    from transformers import TorchAoConfig

    match kind:
        case "int8":
            return TorchAoConfig(ao.Int8WeightOnlyConfig())
        case "int8-rounded-activations":
            return TorchAoConfig(ao.Int8DynamicActivationInt8WeightConfig())
        case "fp8":
            return TorchAoConfig(ao.Float8WeightOnlyConfig())
    return TorchAoConfig(
        ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.granularity.PerGroup(32))
    )


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


def save_compressed(directory: Path, groups: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """A tiny checkpoint compressed as `groups` say."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    model = tiny_model("llama").to(dtype)
    model.save_pretrained(directory)
    settings = QuantizationConfig(config_groups=groups, ignore=["lm_head"])
    apply_quantization_config(model, settings)
    for module in [module for module in model.modules() if hasattr(module, "quantization_scheme")]:
        args, weight = module.quantization_scheme.weights, module.weight.data.float()
        size = {"group": args.group_size, "channel": weight.shape[1], "tensor": weight.numel()}[args.strategy]
        grouped = weight.reshape(-1, size)
        top = 448.0 if args.type == "float" else 2.0 ** (args.num_bits - 1) - 1
        if args.symmetric:
            scale, zero = grouped.abs().amax(1, keepdim=True) / top, torch.zeros(len(grouped), 1)
        else:
            low, high = grouped.amin(1, keepdim=True), grouped.amax(1, keepdim=True)
            scale = (high - low) / (2**args.num_bits - 1)
            zero = (-(2.0 ** (args.num_bits - 1)) - low / scale).round()
        module.weight_scale.data = scale.reshape(module.weight_scale.shape).to(dtype)
        if not args.symmetric:
            module.weight_zero_point.data = zero.reshape(module.weight_zero_point.shape).to(torch.int8)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, directory / "model.safetensors", {"format": "pt"})
    compressor.update_config(str(directory))


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


def weights(**args: Any) -> dict[str, Any]:
    return {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, **args}


ROUNDED = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
SCHEMES: dict[str, dict[str, Any]] = {
    "w4a16": {"g": {"targets": ["Linear"], "weights": weights()}},
    "w4a16-asymmetric": {"g": {"targets": ["Linear"], "weights": weights(symmetric=False)}},
    "w8a8": {
        "g": {
            "targets": ["Linear"], "weights": weights(num_bits=8, strategy="channel", group_size=None),
            "input_activations": ROUNDED,
        }
    },
    "fp8": {
        "g": {
            "targets": ["Linear"], "weights": weights(num_bits=8, type="float", strategy="channel", group_size=None),
            "input_activations": {**ROUNDED, "type": "float"},
        }
    },
    "mixed": {
        "a": {"targets": ["re:.*self_attn.*"], "weights": weights(num_bits=8, strategy="channel", group_size=None)},
        "b": {"targets": ["re:.*mlp.*"], "weights": weights()},
    },
}


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


def save_fp8(directory: Path, block: tuple[int, int], mx: bool = False) -> dict[str, torch.Tensor]:
    """A tiny checkpoint in fine-grained fp8 (scales per block; `mx`: powers of two as bytes), and its values."""
    model = tiny_model("llama")
    model.save_pretrained(directory)
    state, wanted = dict(model.state_dict()), {}
    for name in [name for name in state if "proj" in name]:
        rows, cols = state[name].shape
        blocks = state[name].reshape(rows // block[0], block[0], cols // block[1], block[1])
        scale = blocks.abs().amax((1, 3), keepdim=True) / 448
        exponent = scale.log2().ceil()
        scale = exponent.exp2() if mx else scale
        integers = (blocks / scale).to(torch.float8_e4m3fn)
        wanted[name] = (integers.float() * scale).reshape(rows, cols)
        state[name] = integers.reshape(rows, cols)
        stored = exponent + 127 if mx else scale
        state[f"{name}_scale_inv"] = stored[:, 0, :, 0].to(torch.uint8) if mx else stored[:, 0, :, 0]
    settings = {"quant_method": "mxfp8" if mx else "fp8", "activation_scheme": "dynamic", "weight_block_size": block}
    with_settings(directory, state, {**settings, **({"scale_fmt": "ue8m0"} if mx else {})})
    return wanted


@pytest.mark.parametrize(("block", "mx"), [((32, 32), False), ((1, 32), True)])
def test_fp8_values_are_fp8_times_the_scale_of_their_block(tmp_path: Path, block: tuple[int, int], mx: bool) -> None:
    wanted = save_fp8(tmp_path, block, mx)
    loaded = load_model(spec(tmp_path)).state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in wanted.items())


# --- all of them


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

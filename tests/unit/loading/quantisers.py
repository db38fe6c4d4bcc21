"""Makes tiny checkpoints that other packages quantised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from actors.spec import ModelSpec
from tests.models import tiny_model
from tests.unit.loading.greedy import PROMPTS


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


def bnb_config(kind: str) -> Any:
    from transformers import BitsAndBytesConfig

    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    name, _, nested = kind.partition("-")
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=name, bnb_4bit_use_double_quant=bool(nested),
        bnb_4bit_compute_dtype=torch.float32,
    )


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

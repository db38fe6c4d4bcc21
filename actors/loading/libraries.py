"""De-quantising with the package that made the checkpoint: torchao, compressed-tensors, and transformers itself
for fine-grained fp8. Each function returns every tensor of the model, de-quantised in fp32 and rounded once.

The packages are imported late: they are an extra (`pip install 'outrider[quantised]'`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from pydantic import ValidationError
from transformers import FineGrainedFP8Config

from actors.loading.errors import UnsupportedModel
from actors.loading.plain import load_complete
from actors.loading.stored import StoredTensors

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

class Quantised(NamedTuple):
    """A checkpoint whose configuration names a quantisation."""

    model: str  # as the user named it, for messages
    source: Path | str
    config: PreTrainedConfig  # with its marks
    settings: Mapping[str, Any]  # its quantization_config
    dtype: torch.dtype  # wanted


class Plain(NamedTuple):
    """De-quantised tensors by name; `linears` names those that are [out, in] whatever the model wants."""

    tensors: dict[str, torch.Tensor]
    linears: frozenset[str] = frozenset()


def fine_grained_fp8(checkpoint: Quantised) -> Plain:
    """e4m3 with a scale per block or tensor, and MXFP8."""
    return Plain(_load(checkpoint, FineGrainedFP8Config(dequantize=True)).state_dict())


def torchao(checkpoint: Quantised) -> Plain:
    """Weights that know how to de-quantise themselves (int8, int4 of the intx kind, fp8) and plain int4."""
    tensors = _load(checkpoint).state_dict()
    return Plain({name: _torchao_values(checkpoint, tensor).to(checkpoint.dtype) for name, tensor in tensors.items()})


def _torchao_values(checkpoint: Quantised, tensor: torch.Tensor) -> torch.Tensor:
    from torchao.quantization import Float8Tensor, Int4Tensor, Int8Tensor, IntxUnpackedToInt8Tensor
    from torchao.utils import TorchAOBaseTensor

    weight: Any = tensor.data
    if not isinstance(weight, TorchAOBaseTensor):
        return tensor
    match weight:
        case Int8Tensor() | Float8Tensor():
            values = weight.dequantize(torch.float32)
        case IntxUnpackedToInt8Tensor():
            values = weight.to(torch.float32).dequantize()
        case Int4Tensor():
            values = _plain_int4(weight)
        case _:
            raise UnsupportedModel(
                f"{checkpoint.model}: torchao's {type(weight).__name__} is made for a GPU kernel: quantise with another"
                " packing format, such as Int8WeightOnlyConfig or IntxWeightOnlyConfig"
            )
    before = getattr(weight, "act_pre_scale", None)  # a factor on the input of the layer
    result: torch.Tensor = values if before is None else values * before.float()
    return result


def _plain_int4(weight: Any) -> torch.Tensor:
    """torchao's Int4Tensor has no way back of its own: two's complement nibbles, low one first, `q * scale + zero`."""
    packed = weight.qdata.view(torch.int8)
    integers = torch.stack([(packed << 4) >> 4, packed >> 4], -1).flatten(-2).float()
    size, num_inputs = weight.block_size[-1], integers.shape[-1]
    scale, zero = weight.scale.float(), weight.zero_point.float()  # [groups, out]
    group = torch.arange(num_inputs) // size
    values: torch.Tensor = integers * scale[..., group, :].transpose(-1, -2) + zero[..., group, :].transpose(-1, -2)
    return values


def compressed_tensors(checkpoint: Quantised) -> Plain:
    """llm-compressor's formats; the package decompresses layer by layer, here with fp32 scales.

    transformers' own `dequantize` takes one scheme for all dense layers and multiplies in the dtype of the scales;
    a mixed checkpoint would come out wrong, and bf16 scales would round.
    """
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.format import infer_module_format
    from compressed_tensors.config import CompressionFormat
    from compressed_tensors.quantization import QuantizationConfig, QuantizationMetadata

    if any(checkpoint.settings.get(key) for key in ("transform_config", "sparsity_config")):
        raise UnsupportedModel(f"{checkpoint.model}: compressed-tensors transforms and sparsity are not supported")
    try:
        settings = QuantizationConfig.model_validate(dict(checkpoint.settings))
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UnsupportedModel(f"{checkpoint.model}: compressed-tensors refuses its settings: {reason}") from error
    stored = StoredTensors(checkpoint.model, checkpoint.source)
    extras = {*QuantizationMetadata.all_qparam_names(), "weight_packed", "weight_shape"}
    scaled = [name.removesuffix(".weight_scale") for name in stored if name.endswith(".weight_scale")]
    tensors = {}
    for module in scaled:
        scheme = _scheme(checkpoint.model, settings, module)
        layout = CompressionFormat(scheme.format or infer_module_format(torch.nn.Linear, scheme))
        names = [name for name in ("weight", *extras) if f"{module}.{name}" in stored]
        parts = {name: _widened(stored[f"{module}.{name}"]) for name in names}
        decompressed = BaseCompressor.get_value_from_registry(layout.value).decompress(parts, scheme)
        tensors[f"{module}.weight"] = decompressed["weight"].to(checkpoint.dtype)
    linears = frozenset(tensors)
    for name in stored:
        if name not in linears and name.rpartition(".")[2] not in extras:
            tensors[name] = stored[name]
    return Plain(tensors, linears)


def _scheme(model: str, settings: Any, module: str) -> Any:
    """The config group that a layer belongs to: by name or pattern, else by class."""
    from compressed_tensors.utils.match import match_name

    groups = settings.config_groups.values()
    named = [g for g in groups if any(match_name(module, target) for target in g.targets)]
    by_class = [g for g in groups if any(target[:1].isupper() for target in g.targets)]
    if not named and not by_class:
        raise UnsupportedModel(f"{model}: no config group tells how {module} is stored")
    return (named or by_class)[0]


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _load(checkpoint: Quantised, loading: Any = None) -> PreTrainedModel:
    """transformers' own quantised model, on the CPU. Raises ModelNotFound if a weight is missing."""
    options = {} if loading is None else {"quantization_config": loading}
    return load_complete(
        checkpoint.model, checkpoint.source, config=checkpoint.config, dtype=checkpoint.dtype,
        device_map={"": "cpu"}, **options,
    )

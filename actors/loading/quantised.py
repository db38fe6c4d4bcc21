"""Checkpoints that come quantised: de-quantised at load, to a model of plain linears with exactly their values.

So `weights: fp32` is the checkpoint's own law, and the engine's int8 and int4 kernels repack from it. Values are
computed in fp32 and rounded once, to the tier's dtype. What was tried, on CPU with torch 2.13.0, transformers 5.23.0:

| quant_method | how | tried with |
|---|---|---|
| gptq (2, 3, 4, 8 bits, act order, format 1 and 2) | own reader, `packed` | files written by gptqmodel 7.7.0 |
| awq (GEMM, 4 bits) | own reader, `packed` | files written by gptqmodel 7.7.0 |
| fbgemm_fp8 | own reader, `packed` | transformers' loader wants a GPU |
| bitsandbytes (int8, nf4, fp4, nested) | own reader, `packed` | files written by bitsandbytes 0.50.2 (*) |
| torchao (int8, intx, fp8; plain int4) | transformers, the tensors' `dequantize` | torchao 0.18.0 |
| compressed-tensors (int, packed, float, nvfp4, ...) | the package's `decompress` | compressed-tensors 0.20.1 |
| fp8, mxfp8 | transformers, `dequantize=True` | no package needed |

transformers itself loads GPTQ and AWQ through optimum and gptqmodel; gptqmodel 7.7.0 wants torch 2.14.1 or newer (it
imports with 2.13 all the same, which the tests use when it is there), and autoawq is no longer maintained. torchao's
int4 for GPU kernels (tile-packed, preshuffled) cannot be unpacked without one. Anything else is refused by name.

(*) bitsandbytes' wheel has a CPU library, and transformers loads and de-quantises with it; but 4-bit weights whose
in_features is no multiple of the block size (64) come out wrong there, and after a first forward pass all do.

Engines that run such checkpoints with rounded activations (LLM.int8, fp8, W8A8) give other texts: here activations
keep their precision, which is said once in the log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from actors.loading import libraries, packed
from actors.loading.errors import ModelNotFound, UnsupportedModel, first_line
from actors.loading.libraries import Plain, Quantised
from actors.loading.packed import DamagedParts, PartReader
from actors.loading.plain import assemble, conv1d_names, unmarked
from actors.loading.stored import StoredTensors

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

log = logging.getLogger(__name__)

_SETTINGS_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}  # of quantisers before transformers 4.32


class _Format(NamedTuple):
    """How checkpoints of one `quant_method` become plain."""

    read: Callable[[Quantised], Plain]
    package: str | None = None  # must be installed


def settings_of(source: Path | str, config: PreTrainedConfig) -> Mapping[str, Any] | None:
    """The quantisation that a checkpoint says it has, with its `quant_method`, or None."""
    for part in (config, config.get_text_config()):
        found = getattr(part, "quantization_config", None)
        if found:
            settings = dict(found if isinstance(found, Mapping) else found.to_dict())
            if settings.get("load_in_8bit") or settings.get("load_in_4bit"):
                settings.setdefault("quant_method", "bitsandbytes")
            return settings
    for name, method in _SETTINGS_FILES.items():
        if isinstance(source, Path) and (source / name).is_file():
            return {"quant_method": method, **json.loads((source / name).read_text())}
    return None


def load(
    model: str, source: Path | str, config: PreTrainedConfig, settings: Mapping[str, Any], dtype: torch.dtype
) -> PreTrainedModel:
    """The model in `dtype` without a trace of its quantisation, on the CPU.

    Raises:
        UnsupportedModel: the format cannot be read here; the line names the package to install, or what to use.
        ModelNotFound: weights are missing or damaged.
    """
    method = str(settings.get("quant_method", "")).lower()
    form = _FORMATS.get(method)
    if form is None:
        raise UnsupportedModel(
            f"{model} is quantised with {method or 'an unnamed method'}, which cannot be read here: use the original,"
            f" or one quantised with {', '.join(_FORMATS)}"
        )
    if form.package is not None and util.find_spec(form.package) is None:
        package = form.package.replace("_", "-")
        raise UnsupportedModel(f"{model} is quantised with {package}, which is not installed: pip install {package}")
    if _rounds_activations(method, settings):
        log.warning("%s: engines that round activations, as its configuration asks for, give other texts; here only "
                    "the weights are rounded", model)
    checkpoint = Quantised(model, source, config, settings, dtype)
    try:
        plain = form.read(checkpoint)
    except (UnsupportedModel, ModelNotFound, OSError):
        raise
    except (ImportError, RuntimeError, ValueError, KeyError, AttributeError, AssertionError) as error:
        # Packages fail in many ways on files that they do not know; the user gets one line all the same.
        raise UnsupportedModel(f"{model} ({method}) cannot be de-quantised: {first_line(error)}") from error
    return assemble(model, config, _oriented(config, plain), dtype)


def _oriented(config: PreTrainedConfig, plain: Plain) -> dict[str, torch.Tensor]:
    """Quantisers keep every weight as [out, in]; GPT-2's own layers want [in, out]."""
    turned = conv1d_names(unmarked(config))
    return {
        name: tensor.t().contiguous() if name in plain.linears and name.split(".")[-2] in turned else tensor
        for name, tensor in plain.tensors.items()
    }


def _parts(weight: PartReader, names: tuple[str, ...]) -> Callable[[Quantised], Plain]:
    """Reads layer by layer: `names` are the parts of a layer, the first tells which layers are quantised."""
    marker = names[0]

    def read(checkpoint: Quantised) -> Plain:
        stored = StoredTensors(checkpoint.model, checkpoint.source)
        tensors: dict[str, torch.Tensor] = {}
        used: set[str] = set()
        for layer in (name.removesuffix(f".{marker}") for name in stored if name.endswith(f".{marker}")):
            present = {part: f"{layer}.{part}" for part in names if f"{layer}.{part}" in stored}
            try:
                values = weight({part: stored[name] for part, name in present.items()}, checkpoint.settings)
            except KeyError as error:
                raise DamagedParts(f"{checkpoint.model}: {layer} has no {error.args[0]}: download it again") from error
            except DamagedParts as error:
                raise DamagedParts(f"{checkpoint.model}: {layer}: {error}; download or quantise it again") from error
            except UnsupportedModel as error:
                raise UnsupportedModel(f"{checkpoint.model}: {error}") from error
            tensors[f"{layer}.weight"] = values.to(checkpoint.dtype)
            used.update(present.values())
        scaled = [name for name in stored if name.endswith(".act.scales")]
        if scaled:
            raise UnsupportedModel(f"{checkpoint.model} scales activations ({scaled[0]}), which is not supported")
        linears = frozenset(tensors)
        tensors.update({name: stored[name] for name in stored if name not in used})
        return Plain(tensors, linears)

    return read


def _bitsandbytes(checkpoint: Quantised) -> Plain:
    if checkpoint.settings.get("load_in_8bit"):
        return _parts(packed.bnb_int8_weight, packed.BNB_INT8_PARTS)(checkpoint)
    return _parts(packed.bnb_4bit_weight, packed.BNB_4BIT_PARTS)(checkpoint)


def _rounds_activations(method: str, settings: Mapping[str, Any]) -> bool:
    match method:
        case "fp8" | "mxfp8" | "fbgemm_fp8":
            return True
        case "bitsandbytes":
            return bool(settings.get("load_in_8bit"))
        case "torchao":
            return "activation" in json.dumps(settings.get("quant_type"), default=str).lower()
        case "compressed-tensors":
            groups = settings.get("config_groups") or {}
            return any(group.get("input_activations") for group in groups.values())
    return False


_FORMATS = {
    "gptq": _Format(_parts(packed.gptq_weight, packed.GPTQ_PARTS)),
    "awq": _Format(_parts(packed.awq_weight, packed.AWQ_PARTS)),
    "bitsandbytes": _Format(_bitsandbytes),
    "torchao": _Format(libraries.torchao, "torchao"),
    "compressed-tensors": _Format(libraries.compressed_tensors, "compressed_tensors"),
    "fp8": _Format(libraries.fine_grained_fp8),
    "mxfp8": _Format(libraries.fine_grained_fp8),
    "fbgemm_fp8": _Format(_parts(packed.fbgemm_weight, packed.FBGEMM_PARTS)),
}

"""Finding, checking and loading a model: a directory, a GGUF file, a Hugging Face id, or `builtin:smollm2`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, GenerationConfig

from actors.loading import quantised, reduced
from actors.loading.builtin import builtin_path, is_builtin
from actors.loading.errors import ModelNotFound, UnsupportedModel, first_line
from actors.loading.gguf import converted, gguf_file
from actors.loading.plain import load_complete
from actors.loading.shapes import is_random, random_model, random_path
from actors.loading.support import KVGeometry, check_supported, kv_geometry, max_context_tokens
from actors.spec import EMULATED, ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = [
    "DTYPES", "KVGeometry", "ModelNotFound", "UnsupportedModel", "check_supported", "is_emulated",
    "kv_geometry", "load_config", "load_generation_config", "load_model", "max_context_tokens", "resolve",
]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def is_emulated(model: str) -> bool:
    """Whether `model` names an emulated device rather than a model that can be run."""
    return model.startswith(EMULATED)


def resolve(model: str) -> Path | str:
    """The directory that `model` names, or `model` itself if it can only be a Hugging Face id.

    A built-in model or GGUF file is converted into the local cache at first use, which is then its directory.

    Raises:
        ModelNotFound: it looks like a path, but there is no checkpoint.
        UnsupportedModel: a GGUF file that cannot be converted.
        BuiltinModelError: a built-in model that cannot be had.
    """
    if is_builtin(model):
        return builtin_path(model)
    if is_random(model):
        return random_path(model)
    if is_emulated(model):
        return resolve(model.removeprefix(EMULATED))
    if not model.strip():
        raise ModelNotFound("the model name is empty: give a directory, a Hugging Face id or builtin:smollm2")
    path = Path(model).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return path
        gguf = gguf_file(path)
        if gguf is None:
            raise ModelNotFound(f"{model} has no config.json: give a Hugging Face checkpoint directory or a GGUF file")
        return converted(gguf)
    if path.is_file():
        if gguf_file(path) is None:
            raise ModelNotFound(f"{model} is a file: give the directory of a Hugging Face checkpoint, or a .gguf file")
        return converted(path)
    looks_like_path = model.startswith((".", "~", "/")) or model.count("/") > 1
    if looks_like_path:
        raise ModelNotFound(f"there is no directory {model!r}: check the path, or try builtin:smollm2")
    return model


def load_config(model: str) -> PreTrainedConfig:
    """The model's configuration. Raises ModelNotFound; UnsupportedModel for an unknown kind."""
    source = resolve(model)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(source)
    except OSError as error:
        raise not_found(model, source) from error
    except ValueError as error:
        raise UnsupportedModel(f"{model}: {first_line(error)}") from error
    return config


def load_generation_config(model: str) -> GenerationConfig | None:
    """The model's generation settings (its end-of-text ids, above all), or None if it comes without."""
    try:
        settings: GenerationConfig = GenerationConfig.from_pretrained(resolve(model))
    except OSError:
        return None
    return settings


def load_model(spec: ModelSpec) -> PreTrainedModel:
    """The whole model on `spec.device` in `spec.dtype`, for inference: eval mode, no gradients, plain linears.

    Weights are memory-mapped while they are read; thread settings are left alone. A quantised checkpoint is
    de-quantised (`actors.loading.quantised`).

    Raises:
        ModelNotFound: no checkpoint, or one that lacks weights.
        UnsupportedModel: see `check_supported`; or its quantisation cannot be read here.
    """
    dtype = DTYPES.get(spec.dtype)
    if dtype is None:
        raise ValueError(f"dtype {spec.dtype!r} is unknown: use one of {', '.join(DTYPES)}")
    if is_emulated(spec.model):
        raise UnsupportedModel(f"{spec.model} is no model to load: give its tier an `emulation` section")
    source = resolve(spec.model)
    config = load_config(spec.model)
    check_supported(config)
    settings = quantised.settings_of(source, config)
    model: PreTrainedModel
    try:
        if is_random(spec.model):
            model = random_model(spec.model, dtype, spec.device)
        elif reduced.section(config) is not None and isinstance(source, Path):
            model = reduced.load(spec.model, source, config, dtype)
        elif settings is not None:
            model = quantised.load(spec.model, source, config, settings, dtype)
            model.generation_config = load_generation_config(spec.model) or model.generation_config
        else:
            model = load_complete(spec.model, source, config=config, dtype=dtype)
    except OSError as error:
        raise not_found(spec.model, source) from error
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModel(f"{spec.model} keeps a state that cannot take back a rejected draft")
    model.to(spec.device)  # type: ignore[arg-type]
    model.eval()  # type: ignore[no-untyped-call]
    model.requires_grad_(False)
    return model


def not_found(model: str, source: Path | str) -> ModelNotFound:
    """One line for a checkpoint that transformers could not read."""
    if isinstance(source, Path):
        return ModelNotFound(f"the checkpoint {model} is incomplete or damaged: download or convert it again")
    return ModelNotFound(
        f"{model!r} is no directory here and cannot be had from the Hugging Face hub: check the name and the"
        " network, or try builtin:smollm2"
    )

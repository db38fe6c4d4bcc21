"""Models of plain layers: every weight is there, and nothing tells how the checkpoint stored it.

Quantisers of transformers leave marks on a model and its configuration (`quantization_config`, `hf_quantizer`,
exchanged classes, hooks) that later steps stumble over: saving is refused, AutoTP sees classes it does not know.
So a de-quantised model is made anew from the unmarked configuration, and takes its weights over without a copy.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from actors.loading.errors import ModelNotFound, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_MARKS = ("quantization_config", "_is_quantized", "_pre_quantization_dtype", "_model_name_or_path")


def unmarked(config: PreTrainedConfig) -> PreTrainedConfig:
    """A copy of `config` that says nothing of quantisation."""
    clean = copy.deepcopy(config)
    for part in (clean, clean.get_text_config()):
        for mark in _MARKS:
            part.__dict__.pop(mark, None)
    return clean


def conv1d_names(config: PreTrainedConfig) -> frozenset[str]:
    """Last names of the modules that keep their weight as [in, out] (GPT-2 style), read from an empty model."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return frozenset(name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, Conv1D))


def assemble(
    name: str, config: PreTrainedConfig, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> PreTrainedModel:
    """The model of `config` with the weights `tensors`, named as a checkpoint or the model itself names them.

    transformers' loader does the naming, merging of experts, tying and casting; tensors of the right dtype are
    taken over, not copied. `name` is for messages. Raises ModelNotFound if a weight is missing.
    """
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    try:
        model, report = kind.from_pretrained(
            None, config=unmarked(config), state_dict=dict(tensors), dtype=dtype, output_loading_info=True
        )
    except RuntimeError as error:  # shapes
        raise ModelNotFound(f"the weights of {name} do not fit its config.json: {first_line(error)}") from error
    _check_complete(name, report["missing_keys"])
    result: PreTrainedModel = model
    return result


def load_complete(name: str, source: Path | str, **options: Any) -> PreTrainedModel:
    """`AutoModelForCausalLM.from_pretrained`, but a checkpoint that lacks weights raises ModelNotFound."""
    loading: Any = AutoModelForCausalLM.from_pretrained(source, **options, output_loading_info=True)
    model, report = loading
    _check_complete(name, report["missing_keys"])
    result: PreTrainedModel = model
    return result


def _check_complete(name: str, missing: Collection[str]) -> None:
    """transformers would fill missing weights with noise and only warn."""
    if missing:
        raise ModelNotFound(
            f"the checkpoint {name} lacks {len(missing)} of its weights ({min(missing)}, ...): it is incomplete, or"
            " stored in a way that its config.json does not tell; download or convert it again"
        )

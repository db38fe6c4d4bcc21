"""The two ends of a model, its embedding and its output head, without what lies between: draft heads share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from actors.loading import quantised
from actors.loading.checkpoint import load_config, load_model, resolve
from actors.loading.errors import UnsupportedModel
from actors.loading.plain import unmarked
from actors.loading.shapes import is_random
from actors.loading.stored import StoredTensors
from actors.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Ends:
    """Both [vocab_size, hidden], as stored, on the CPU; one and the same where the model ties them."""

    embedding: torch.Tensor
    output: torch.Tensor


def load_ends(spec: ModelSpec) -> Ends:
    """The ends of `spec.model`: read alone from a plain checkpoint, else (quantised, random, pickled) of the whole.

    Raises as `load_model`.
    """
    config = load_config(spec.model)
    source = resolve(spec.model)
    if not is_random(spec.model) and quantised.settings_of(source, config) is None:
        try:
            stored = StoredTensors(spec.model, source)
        except UnsupportedModel:  # no safetensors
            return _of(load_model(spec))
        with torch.device("meta"):
            empty: Any = AutoModelForCausalLM.from_config(unmarked(config))  # type: ignore[no-untyped-call]
        found = [_find(empty, stored, module.weight) for module in
                 (empty.get_input_embeddings(), empty.get_output_embeddings())]
        if found[0] is not None and found[1] is not None:
            return Ends(stored[found[0]], stored[found[1]])
    return _of(load_model(spec))


def _of(model: Any) -> Ends:
    return Ends(model.get_input_embeddings().weight.detach().cpu(), model.get_output_embeddings().weight.detach().cpu())


def _find(empty: Any, stored: StoredTensors, weight: torch.nn.Parameter) -> str | None:
    """The name under which a checkpoint keeps a weight of the empty model; of a tied one either name may be there."""
    names = [name for name, parameter in empty.named_parameters(remove_duplicate=False) if parameter is weight]
    return next((name for name in names if name in stored and stored[name].shape == weight.shape), None)

"""Making a head ready to serve: packed weights on a CPU, half precision on a GPU, gradients off."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from actors.engine.linear import make_linear, pack_linears
from actors.heads.vocab import ReducedHead
from actors.loading.checkpoint import DTYPES
from actors.spec import ModelSpec


def make_ready(module: nn.Module, spec: ModelSpec) -> None:
    """Move `module` to `spec.device` and make its matrices what `spec` says, in place; its `head` becomes a linear
    layer to the drafted ids, so read its vocabulary before.

    On a CPU the kernels are those of the engine (an int4 model's output head has 8 bits there, too); on a GPU matrices
    are held in `spec.dtype`, to be multiplied under `precision`.
    """
    module.requires_grad_(False).eval().to(spec.device)
    head = module.head
    assert isinstance(head, ReducedHead)
    if torch.device(spec.device).type == "cpu":
        pack_linears(module, spec.weights, spec.kernels)
        module.head = make_linear(
            "int8" if spec.weights == "int4" else spec.weights, spec.kernels, head.weight, None
        )
        return
    for child in module.modules():
        if isinstance(child, nn.Linear | ReducedHead):
            child.to(DTYPES[spec.dtype])


def precision(spec: ModelSpec) -> AbstractContextManager[object]:
    """Around a pass: matrices are multiplied as they are held."""
    kind = torch.device(spec.device).type
    if kind == "cpu" or spec.dtype == "float32":
        return nullcontext()
    return torch.autocast(kind, DTYPES[spec.dtype])

"""Linear layers whose row results do not depend on the other rows (DESIGN: bits), chosen at load time.

`nn.Linear` picks a kernel by the number of rows, so a token's bits would depend on its neighbours;
each class here keeps one reduction order for any number of rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D


class PackedLinear(nn.Module):
    """fp32 weights packed once for oneDNN: the same bits for any number of rows.

    Measured on the whole model: bit-identical at 1 to 512 rows, where `nn.Linear` differs by 1e-5.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().float().contiguous(), 8)
        self.weight_packed = packed  # an opaque oneDNN tensor: neither parameter nor buffer
        self.bias = None if bias is None else bias.detach().float().contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., in_features] float32 -> [..., out_features]."""
        rows = x.reshape(-1, self.in_features)
        out = torch.ops.mkldnn._linear_pointwise(rows, self.weight_packed, self.bias, "none", [], "")
        result: torch.Tensor = out.view(*x.shape[:-1], self.out_features)
        return result


class Int8Linear(nn.Module):
    """Weight-only int8, one scale per output channel, bf16 activations.

    Every row is its own dot products, so rows are independent. Output in the input's dtype.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        w = weight.detach().float()
        scale = w.abs().amax(dim=1).clamp_min(1e-12) / 127.0
        self.register_buffer("weight_int8", (w / scale[:, None]).round().to(torch.int8).contiguous())
        self.register_buffer("scale", scale.to(torch.bfloat16))
        self.bias = None if bias is None else bias.detach().to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., in_features] -> [..., out_features]."""
        rows = x.reshape(-1, self.in_features).to(torch.bfloat16)
        out = torch.ops.aten._weight_int8pack_mm(rows, self.weight_int8, self.scale)
        if self.bias is not None:
            out = out + self.bias
        result: torch.Tensor = out.view(*x.shape[:-1], self.out_features).to(x.dtype)
        return result


class PlainLinear(nn.Module):
    """The framework's own kernel (GPUs, bf16): fast, but its bits may depend on the number of rows."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., in_features] -> [..., out_features]."""
        return nn.functional.linear(x, self.weight, self.bias)


_PORTABLE: dict[str, Callable[[torch.Tensor, torch.Tensor | None], nn.Module]] = {
    "fp32": PackedLinear,
    "int8": Int8Linear,
    "bf16": PlainLinear,
}


def make_linear(kind: str, kernels: str, weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
    """A linear layer of `kind` over weight [out, in] and bias [out].

    On a CPU the "native" kernels (fp32, bf16, int8, w8a8, int4) all keep a row's bits whatever its neighbours; of
    the "portable" ones fp32 and int8 do. On a GPU the framework's own kernel runs, whatever the kind.

    Raises:
        ValueError: no such kind.
    """
    if weight.device.type != "cpu":
        return PlainLinear(weight, bias)
    if kernels == "native":
        from actors.engine.native.weights import NativeLinear

        return NativeLinear(kind, weight, bias)
    if kind not in _PORTABLE:
        raise ValueError(f"weights: {kind} needs kernels: native; the portable ones are {', '.join(_PORTABLE)}")
    return _PORTABLE[kind](weight, bias)


def pack_linears(model: nn.Module, kind: str, kernels: str = "native") -> None:
    """Replace every `nn.Linear` and GPT-2 style `Conv1D` of `model`, in place."""
    for name, child in list(model.named_children()):
        if type(child) is nn.Linear:
            setattr(model, name, make_linear(kind, kernels, child.weight, child.bias))
        elif isinstance(child, Conv1D):
            setattr(model, name, make_linear(kind, kernels, child.weight.t().contiguous(), child.bias))
        else:
            pack_linears(child, kind, kernels)

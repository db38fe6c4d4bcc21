"""A model's own sums in one order: what its attention does not do, with bits that do not depend on the batch.

cuBLAS chooses its kernel, and PyTorch the layout of a reduction, by the number of rows, so a row's last bits would
follow its neighbours (the observation and the remedy, fixed tiles, are those of "Defeating nondeterminism in LLM
inference", Thinking Machines 2025). Inside `FixedOrder` matrix products and sums over the last dimension run in
kernels of fixed tiles; per-row kernels of PyTorch (layer norm, softmax) keep their order anyway; what else adds up
values is refused rather than let through. In a captured graph this costs nothing at replay.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten: Any = torch.ops.aten

BLOCK_M, BLOCK_N, BLOCK_K = 64, 32, 128  # narrow in outputs: without split-K they alone occupy the device
LARGEST_ROW = 1 << 16
REFUSED = frozenset(
    {
        "_grouped_mm", "_int_mm", "_scaled_mm", "addbmm", "addmv", "baddbmm", "bmm", "convolution", "cumsum", "dot",
        "einsum", "group_norm", "linalg_vector_norm", "logsumexp", "mv", "norm", "prod",
        "scaled_dot_product_attention", "std", "var",
    }
)


class UnorderedSum(ValueError):
    """The model adds up values in a way whose order is not fixed."""


class FixedOrder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, sums of models that run in this thread have one order. Kernels: the module of Triton kernels."""

    def __init__(self, kernels: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kernels = kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `torch.utils._python_dispatch.TorchDispatchMode`."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if func is aten.linear.default:
            return self._linear(args[0], args[1], _argument(args, kwargs, 2, "bias", None))
        if func is aten.addmm.default and _argument(args, kwargs, 3, "beta", 1) == 1 == kwargs.get("alpha", 1):
            return self._linear(args[1], args[2].t(), args[0])
        if func in (aten.mm.default, aten.matmul.default) and args[1].dim() == 2:
            return self._linear(args[0], args[1].t(), None)
        if func in (aten.mean.dim, aten.sum.dim_IntList):
            return self._sum(func, args, kwargs)
        if name in REFUSED or name in ("addmm", "matmul", "mean", "sum"):
            raise UnorderedSum(
                f"this model uses {func}, for which there is no fixed order of addition: use the fast reduction"
            )
        return func(*args, **kwargs)

    def _linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [..., in] by weight [out, in]: [..., out]."""
        rows = x.reshape(-1, x.shape[-1])
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        num_rows, num_outputs = rows.shape[0], weight.shape[0]
        out = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
        if num_rows:
            grid = (-(-num_outputs // BLOCK_N), -(-num_rows // BLOCK_M))
            self._kernels.linear_kernel[grid](
                out, rows, weight, out if bias is None else bias, num_rows, num_outputs, rows.shape[1],
                rows.stride(0), weight.stride(0), weight.stride(1), HAS_BIAS=bias is not None,
                DOT=self._kernels.DTYPES[x.dtype], **linear_constants(x.dtype), num_warps=4, num_stages=3,
            )
        return out.view(*x.shape[:-1], num_outputs)

    def _sum(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """Mean or sum over the last dimension."""
        x: torch.Tensor = args[0]
        dims = _argument(args, kwargs, 1, "dim", None)
        keepdim = bool(_argument(args, kwargs, 2, "keepdim", False))
        if dims is None or [d % x.dim() for d in dims] != [x.dim() - 1] or x.shape[-1] > LARGEST_ROW:
            raise UnorderedSum(f"this model uses {func} over {dims} of {tuple(x.shape)}: use the fast reduction")
        dtype = kwargs.get("dtype") or x.dtype
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out = torch.empty(len(rows), dtype=dtype, device=x.device)
        if len(rows):
            divisor = float(x.shape[-1]) if func is aten.mean.dim else 1.0
            self._kernels.row_sum_kernel[(len(rows),)](
                out, rows, x.shape[-1], divisor, BLOCK=1 << math.ceil(math.log2(x.shape[-1])), num_warps=4
            )
        return out.view(*x.shape[:-1], *([1] if keepdim else []))


def linear_constants(dtype: torch.dtype) -> dict[str, int]:
    """Tile sizes: constants of the dtype alone."""
    return {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K * 2 // dtype.itemsize}


def _argument(args: Any, kwargs: Any, index: int, name: str, default: Any) -> Any:
    return args[index] if len(args) > index else kwargs.get(name, default)

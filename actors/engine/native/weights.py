"""Packing of weight matrices for the kernels (layouts: `src/matmul.c`), and the linear layer over them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from actors.engine.native.large_pages import LargePages
from actors.engine.native.library import INT4_GROUP, LANES, WEIGHT_KINDS, LinearArgs, address, library

BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "w8a8": 1.0, "int4": 0.5}  # of a weight, scales not counted
_memory = LargePages()  # of all weights, which a pass reads from end to end


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight matrix as a kernel reads it; `args` points into `tensors`."""

    kind: str
    num_out: int
    num_in: int
    num_in_padded: int
    tensors: dict[str, torch.Tensor] = field(repr=False)

    def args(self) -> LinearArgs:
        """The C view; this object must outlive it."""
        t = self.tensors
        return LinearArgs(
            WEIGHT_KINDS[self.kind], self.num_out, self.num_in, self.num_in_padded,
            address(t["weight"]), address(t.get("scale")), address(t.get("sum")), address(t.get("bias")),
        )  # fmt: skip

    @property
    def bytes_per_row(self) -> int:
        """Scratch memory of one quantised row (`row_bytes` in `src/matmul.c`, or more)."""
        if self.kind in ("fp32", "bf16"):
            return 0
        return 2 * self.num_in_padded + self.num_in_padded // INT4_GROUP * 4


def pack_weight(kind: str, weight: torch.Tensor, bias: torch.Tensor | None) -> PackedWeight:
    """Pack weight [num_out, num_in] and bias [num_out] for kernel `kind`.

    - fp32, bf16: as they are (bf16 rounds to nearest); activations and sums in fp32.
    - int8: one scale per output channel, times activations of 15 bits with one scale per row: exact integer sums.
      A row never sees its neighbours, unlike with per-tensor activation scales.
    - w8a8: as int8, activations of 8 bits: half the work, for drafts.
    - int4: q * scale + least per 32 inputs (both bf16), 0 <= q <= 15, activations as int8's.

    Raises:
        ValueError: unknown kind.
    """
    if kind not in WEIGHT_KINDS:
        raise ValueError(f"weights: {kind!r} is not one of {', '.join(WEIGHT_KINDS)}")
    num_out, num_in = weight.shape
    unit = {"fp32": 1, "bf16": 1, "int8": 2, "w8a8": 4, "int4": INT4_GROUP}[kind]
    rows, columns = -(-num_out // LANES) * LANES, -(-num_in // unit) * unit
    w = torch.zeros(rows, columns)
    w[:num_out, :num_in] = weight.detach().float()
    tensors: dict[str, torch.Tensor] = {}
    if bias is not None:
        tensors["bias"] = torch.zeros(rows)
        tensors["bias"][:num_out] = bias.detach().float()
    if kind in ("fp32", "bf16"):
        packed = w.view(-1, LANES, columns).transpose(1, 2)
        tensors["weight"] = (packed if kind == "fp32" else packed.bfloat16()).contiguous()
    elif kind == "int4":
        tensors["weight"], tensors["scale"] = _pack_int4(w)
    else:
        scale = w.abs().amax(dim=1) / 127.0
        scale[scale == 0] = 1.0
        q = (w / scale[:, None]).round()
        together = 4 if kind == "w8a8" and library().has_vnni() else 2
        tensors["weight"] = _interleave(q.to(torch.int8), together)
        tensors["scale"] = scale
        tensors["sum"] = q.sum(dim=1).to(torch.int32)
    return PackedWeight(kind, num_out, num_in, columns, {name: _memory.copy(t) for name, t in tensors.items()})


def _interleave(q: torch.Tensor, together: int) -> torch.Tensor:
    """[out, in] -> [out / 16, in / together, 16, together]."""
    rows, columns = q.shape
    return q.view(rows // LANES, LANES, columns // together, together).transpose(1, 2).contiguous()


def _pack_int4(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Nibbles, and (scale, least) bf16 [out / 16, in / 32, 2, 16]; q is chosen with scale and least as rounded."""
    rows, columns = w.shape
    groups = w.view(rows, columns // INT4_GROUP, INT4_GROUP)
    least = groups.amin(dim=2, keepdim=True).bfloat16()
    scale = ((groups.amax(dim=2, keepdim=True) - least.float()) / 15.0).bfloat16()
    scale[scale == 0] = 1.0
    q = ((groups - least.float()) / scale.float()).round().clamp(0, 15).to(torch.uint8).view(rows, columns)
    half = 4 if library().has_vnni() else 2
    together = _interleave(q, 2 * half)
    nibbles = (together[..., :half] | (together[..., half:] << 4)).contiguous()
    pairs = torch.stack([scale, least], dim=2).view(rows // LANES, LANES, columns // INT4_GROUP, 2)
    return nibbles, pairs.permute(0, 2, 3, 1).contiguous()


class NativeLinear(nn.Module):
    """A linear layer over the C kernels: fp32 in, fp32 out, each row its own."""

    def __init__(self, kind: str, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = pack_weight(kind, weight, bias)
        self._args = self.packed.args()
        self._call = library().matmul

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., in_features] -> [..., out_features], in x's dtype."""
        rows = x.reshape(-1, self.in_features).float().contiguous()
        out = torch.empty(len(rows), self.out_features)
        values = torch.empty(len(rows) * self.packed.bytes_per_row, dtype=torch.uint8)
        scale = torch.empty(len(rows))
        self._call(
            self._args, rows.data_ptr(), len(rows), out.data_ptr(), values.data_ptr(), scale.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip
        return out.view(*x.shape[:-1], self.out_features).to(x.dtype)

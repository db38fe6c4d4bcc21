"""Choosing tiles and splits, and launching the Triton kernels.

The sizes come from memory and register budgets: a tile pair within 64 KB of shared memory, so that two programs fit
on an A100 or H100 multiprocessor, and hardly a register kept in memory as the compiler counts them. They have
not been tuned on a device.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from actors.engine.gpu.contract import Reduction
from actors.engine.gpu.ordered import FixedOrder
from actors.engine.gpu.store import LayerKV
from actors.engine.gpu.tensors import Shape, StepTensors
from actors.engine.probe import Geometry

SPLIT_KEYS = 512  # fixed reduction: 16 splits of an 8K context times 8 KV heads occupy a device at one row
MIN_SPLIT_KEYS = 256  # fast reduction: shorter splits cost more in merging than they gain
MAX_WORKSPACE_BYTES = 64 << 20  # of partial results; beyond it there are rows enough to occupy the device
TILE_BYTES = 64 << 10  # shared memory of the key and value tiles in flight
FAST_DECODE_ROWS = 8  # fast reduction: rows of an item in a step of decode and verify rows,
FAST_DECODE_STEP = 64  # which is what a step with room for this many rows counts as
COMBINE_PLACES = 4  # (row, head) pairs that one program merges
# No multiply-add fused across expressions: the two places that merge splits must round alike.
ROUNDING = {"enable_fp_fusion": False}


class TritonMissing(RuntimeError):
    """The kernels cannot be had; the message names the fix."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Launch constants of the attention kernel."""

    block_m: int  # query rows times query heads of a KV head
    block_n: int  # keys
    num_warps: int
    num_stages: int


def tiling(geometry: Geometry, element_bytes: int, rows_per_item: int) -> Tiling:
    """Tiles for items of `rows_per_item` rows; `element_bytes` of what enters the dot products."""
    dim = padded(geometry.head_dim)
    block_m = max(16, padded(rows_per_item * geometry.group))
    num_stages = 2
    block_n = 128 // element_bytes
    while block_n > 16 and 2 * num_stages * block_n * dim * element_bytes > TILE_BYTES:
        block_n //= 2
    return Tiling(block_m, block_n, 8 if block_m * dim * element_bytes >= 16 << 10 else 4, num_stages)


def padded(size: int) -> int:
    """The next power of two, at least 16: what the dot product takes."""
    return max(16, 1 << (size - 1).bit_length())


class TritonKernels:
    """`Kernels` for one model: the same geometries, page size and reduction in every call."""

    def __init__(
        self, layers: Sequence[Geometry], page_tokens: int, reduction: Reduction, num_multiprocessors: int
    ) -> None:
        """`num_multiprocessors` of the device: what the fast reduction tries to occupy.

        Raises:
            TritonMissing: Triton is not installed.
        """
        try:
            from actors.engine.gpu import kernels
        except ModuleNotFoundError as error:
            raise TritonMissing("device cuda needs Triton: pip install 'outrider[gpu]'") from error
        self._kernels: Any = kernels
        self._page_tokens = page_tokens
        self._reduction = reduction
        self._num_multiprocessors = num_multiprocessors
        self._num_kv_heads = min(g.num_kv_heads for g in layers)
        self._row_width = max(g.num_heads * g.head_dim for g in layers)
        self._tile_rows = min(_tile_rows(g) for g in layers)

    @property
    def tree_by_bits(self) -> bool:
        """See `Kernels`: bits order a row's keys by memory, so only the fast reduction may use them."""
        return self._reduction is Reduction.FAST

    def rows_per_item(self, num_rows: int) -> int:
        """See `Kernels`."""
        if self._reduction is Reduction.FIXED or num_rows > FAST_DECODE_STEP:
            return self._tile_rows
        return min(self._tile_rows, FAST_DECODE_ROWS)

    def model_ops(self) -> contextlib.AbstractContextManager[Any]:
        """See `Kernels`."""
        return FixedOrder(self._kernels) if self._reduction is Reduction.FIXED else contextlib.nullcontext()

    def split_keys(self, shape: Shape, longest: int) -> int:
        """See `Kernels`. A multiple of every tile size; the splits of the shape cover `longest`."""
        if self._reduction is Reduction.FIXED:
            return SPLIT_KEYS
        size = math.ceil(longest / self._num_splits(shape))
        return max(MIN_SPLIT_KEYS, -(-size // 64) * 64)

    def write(self, layer: LayerKV, key: torch.Tensor, value: torch.Tensor, step: StepTensors) -> None:
        """See `Kernels`."""
        num_kv_heads, num_rows, head_dim = key.shape
        key, value = _dense_rows(key), _dense_rows(value)
        self._kernels.write_kernel[(num_rows, num_kv_heads)](
            key, value, layer.keys, layer.values, layer.key_scales, layer.value_scales, step.slots,
            key.stride(1), key.stride(0), value.stride(1), value.stride(0),
            NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, DIM_PAD=padded(head_dim), PAGE=self._page_tokens,
            INT8=layer.int8, num_warps=1,
        )

    def attend(
        self, layer: LayerKV, query: torch.Tensor, step: StepTensors, scaling: float, window: int | None
    ) -> torch.Tensor:
        """See `Kernels`."""
        query = _dense_rows(query)
        num_heads, num_rows, head_dim = query.shape
        geometry = Geometry(num_heads, layer.keys.shape[1], head_dim)
        shape = step.shape
        num_splits = self._num_splits(shape)
        constants, options = self.attend_constants(
            geometry, query.dtype if layer.int8 else layer.keys.dtype, layer.int8, window is not None, num_rows,
            shape.num_words, num_splits,
        )
        out = torch.empty(num_rows, num_heads, head_dim, dtype=query.dtype, device=query.device)
        places = num_rows * num_heads
        parts = places * num_splits if num_splits > 1 else 0
        part_acc = torch.empty(parts * head_dim, dtype=torch.float32, device=query.device)
        part_state = torch.empty(parts * 2, dtype=torch.float32, device=query.device)
        self._kernels.attend_kernel[(shape.num_items, geometry.num_kv_heads, num_splits)](
            out, part_acc, part_state, query, layer.keys, layer.values, layer.key_scales, layer.value_scales,
            step.table, step.tail_rows, step.tail_slots, step.items, step.positions, step.ancestors, step.splitting,
            scaling * math.log2(math.e), window or 0, shape.num_pages, query.stride(1), query.stride(0),
            **constants, **options,
        )
        if num_splits > 1:
            self._kernels.combine_kernel[(-(-places // COMBINE_PLACES),)](
                out, part_acc, part_state, places, num_splits, HEAD_DIM=head_dim, DIM_PAD=padded(head_dim),
                BLOCK=COMBINE_PLACES, num_warps=4, **ROUNDING,
            )
        return out

    def attend_constants(
        self, geometry: Geometry, dot: torch.dtype, int8: bool, has_window: bool, num_rows: int, num_words: int,
        num_splits: int,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What `attend_kernel` is compiled for: its constants, and the compiler's options."""
        tiles = tiling(geometry, dot.itemsize, self.rows_per_item(num_rows))
        constants = {
            "NUM_KV_HEADS": geometry.num_kv_heads, "GROUP": geometry.group, "HEAD_DIM": geometry.head_dim,
            "DIM_PAD": padded(geometry.head_dim), "PAGE": self._page_tokens, "BLOCK_M": tiles.block_m,
            "BLOCK_N": tiles.block_n, "INT8": int8, "HAS_WINDOW": has_window, "TREE_WORDS": num_words,
            "PARTIAL": num_splits > 1,
            "INNER_SPLITS": self._reduction is Reduction.FIXED and num_splits == 1,
            "DOT": self._kernels.DTYPES[dot],
        }
        return constants, {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages, **ROUNDING}

    def _num_splits(self, shape: Shape) -> int:
        """Splits that run side by side; 1: each program walks all keys.

        Constant for a shape, so that a captured graph can be replayed.
        """
        longest = shape.max_keys(self._page_tokens)
        if self._reduction is Reduction.FIXED:
            splits = -(-longest // SPLIT_KEYS)
        else:
            # Two programs for every multiprocessor, if half the shape's room is used.
            items = -(-shape.num_rows // (2 * self.rows_per_item(shape.num_rows)))
            wanted = 2 * self._num_multiprocessors // (items * self._num_kv_heads)
            splits = max(1, min(wanted, -(-longest // MIN_SPLIT_KEYS)))
        workspace_bytes = 4 * shape.num_rows * self._row_width * splits
        return splits if workspace_bytes <= MAX_WORKSPACE_BYTES else 1


def _tile_rows(geometry: Geometry) -> int:
    """Rows whose query heads fill a tile."""
    return max(1, (64 if padded(geometry.head_dim) <= 128 else 32) // geometry.group)


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    """`x` [heads, rows, dim] with its last dimension next to each other in memory."""
    return x if x.stride(2) == 1 else x.contiguous()

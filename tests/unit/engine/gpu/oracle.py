"""What the Triton kernels must compute, in plain PyTorch: one dense masked attention per sequence."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from actors.engine.gpu.store import LayerKV
from actors.engine.gpu.tensors import Shape, StepTensors
from actors.engine.gpu.work import NUM_FIELDS


def write(layer: LayerKV, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """Store key and value [num_kv_heads, num_rows, head_dim] at `slots`, rounded as the kernel rounds."""
    page_tokens = layer.keys.shape[2]
    page, offset = slots.long() // page_tokens, slots.long() % page_tokens
    for new, store, scales in (
        (key, layer.keys, layer.key_scales), (value, layer.values, layer.value_scales)
    ):
        rows = new.transpose(0, 1)
        if layer.int8:
            rows = rows.float()
            step = rows.abs().amax(-1).clamp_min(1e-12) / 127.0 + (rows * 0).sum(-1)
            scales[page, :, offset] = step
            rows = (rows / step[..., None] + 0.5).floor().nan_to_num(0.0)
        store[page, :, offset] = rows.to(store.dtype)


def read(layer: LayerKV, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [num_kv_heads, num_slots, head_dim] in float32."""
    page_tokens = layer.keys.shape[2]
    page, offset = slots.long() // page_tokens, slots.long() % page_tokens
    pairs = ((layer.keys, layer.key_scales), (layer.values, layer.value_scales))
    both = []
    for store, scales in pairs:
        rows = store[page, :, offset].float()
        if layer.int8:
            rows = rows * scales[page, :, offset][..., None]
        both.append(rows.transpose(0, 1))
    return both[0], both[1]


def dense(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Attention of query [H, rows, dim] over [KV heads, num_keys, dim] where visible [rows, num_keys]."""
    mask = torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, -torch.inf)
    return torch.nn.functional.scaled_dot_product_attention(
        query.float()[None], keys[None], values[None], attn_mask=mask, scale=scaling, enable_gqa=True
    )[0]


@dataclass
class PlainKernels:
    """`Kernels` that reads the work items row by row: slow, obvious, and independent of Triton.

    `bits`: how it wants trees to be cut.
    """

    page_tokens: int
    bits: bool = False
    item_rows: int = 4

    @property
    def tree_by_bits(self) -> bool:
        return self.bits

    def rows_per_item(self, num_rows: int) -> int:
        return self.item_rows

    def model_ops(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def split_keys(self, shape: Shape, longest: int) -> int:
        return 64

    def write(self, layer: LayerKV, key: torch.Tensor, value: torch.Tensor, step: StepTensors) -> None:
        write(layer, key, value, step.slots)

    def attend(
        self, layer: LayerKV, query: torch.Tensor, step: StepTensors, scaling: float, window: int | None
    ) -> torch.Tensor:
        device = query.device
        out = torch.full((query.shape[1], query.shape[0], query.shape[2]), torch.nan, dtype=query.dtype, device=device)
        shape = step.shape
        items = step.items.view(shape.num_items, NUM_FIELDS).tolist()
        table = step.table.view(shape.num_sequences, shape.num_pages)
        for table_row, committed, start, first, num_rows, num_tail, is_tree, _ in items:
            if num_rows == 0:
                continue
            positions = torch.arange(committed, device=device)
            pages = table[table_row][positions // self.page_tokens] if committed else positions
            held = pages.long() * self.page_tokens + positions % self.page_tokens
            rows = step.tail_rows[start : start + num_tail].long()
            slots = torch.cat([held, step.tail_slots[start : start + num_tail].long()])
            keys, values = read(layer, slots)
            t = torch.arange(num_tail, device=device)
            for own in range(first, first + num_rows):
                row = int(rows[own])
                if is_tree:
                    words = step.ancestors.view(shape.num_rows, shape.num_words)[row].cpu().numpy().view(np.uint8)
                    tail = torch.from_numpy(np.unpackbits(words, bitorder="little")[:num_tail]).bool().to(device)
                    tail_positions = step.positions[rows].long()
                    position = int(step.positions[row])
                else:
                    tail, tail_positions, position = t <= own, committed + t, committed + own
                visible = torch.cat([torch.ones(committed, dtype=torch.bool, device=device), tail])
                if window is not None:
                    visible &= torch.cat([positions, tail_positions]) > position - window
                # The same keys for a row whatever item it is in: so its bits are a function of its text.
                end = len(slots) if is_tree else committed + own + 1
                seen = dense(query[:, row : row + 1], keys[:, :end], values[:, :end], visible[None, :end], scaling)
                out[row] = seen[:, 0].to(out.dtype)
        return out

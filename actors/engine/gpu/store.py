"""Keys and values of all sequences on a device."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer's store. The scales (`keys * key_scales`) are empty unless the store is int8."""

    keys: torch.Tensor  # [num_pages + 2, num_kv_heads, page_tokens, head_dim]
    values: torch.Tensor
    key_scales: torch.Tensor  # [num_pages + 2, num_kv_heads, page_tokens] float32, one per token and head
    value_scales: torch.Tensor

    @property
    def int8(self) -> bool:
        """Whether keys and values are rounded to 8 bits."""
        return self.keys.dtype == torch.int8

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors of the layer that hold something."""
        return (self.keys, self.values, self.key_scales, self.value_scales)[: 4 if self.int8 else 2]


class GpuKV:
    """Paged keys and values of every layer, page by page, so that one (page, head) is one run of memory.

    Two pages are never given to a sequence: page `num_pages` stays zero (copying it scrubs a page that a diverged
    sequence has used), page `num_pages + 1` takes what padding rows write.
    """

    def __init__(
        self, layers: list[tuple[int, int]], num_pages: int, page_tokens: int, dtype: torch.dtype, device: str
    ) -> None:
        """`layers`: (num_kv_heads, head_dim) of each; `dtype` torch.int8 for 8-bit keys and values."""
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        self.dtype = dtype
        self.layers: list[LayerKV] = []
        for heads, head_dim in layers:
            shape = (num_pages + 2, heads, page_tokens)
            scales = shape if dtype == torch.int8 else (0,)
            self.layers.append(
                LayerKV(
                    torch.zeros(*shape, head_dim, dtype=dtype, device=device),
                    torch.zeros(*shape, head_dim, dtype=dtype, device=device),
                    torch.zeros(scales, device=device),
                    torch.zeros(scales, device=device),
                )
            )

    @property
    def trash_slot(self) -> int:
        """Where padding rows write."""
        return (self.num_pages + 1) * self.page_tokens

    @property
    def bytes_per_token(self) -> int:
        """Memory of one token's keys and values over all layers."""
        total = sum(t.numel() * t.element_size() for layer in self.layers for t in layer.tensors())
        return total // ((self.num_pages + 2) * self.page_tokens)

    def copy_pages(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy whole pages in every layer, all at once (copy on write, scrubbing). Indices [num_copies] int64."""
        for layer in self.layers:
            for store in layer.tensors():
                store[target] = store[source]

    def copy_slots(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy single tokens in every layer, all at once: after a tree was verified, its accepted path moves to
        where a chain would have put it. Slots [num_copies] int64."""
        page = self.page_tokens
        for layer in self.layers:
            for store in layer.tensors():
                store[target // page, :, target % page] = store[source // page, :, source % page]

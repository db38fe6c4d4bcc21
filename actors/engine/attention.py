"""Attention over paged keys and values, plugged into any transformers model by its attention registry.

A row's result is a function of its own sequence alone, bit for bit: keys are padded to whole pages and
masked, queries padded to a multiple of 8, and a group of queries is cut where the number of key pages
changes, so the same query always meets the same shapes whatever batch or chunk it came in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from actors.engine.step import StepInput

NAME = "outrider_paged"
QUERY_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """Consecutive rows of one sequence that see the same number of key pages."""

    start: int  # first row
    end: int
    pages: torch.Tensor  # [num_key_pages] int64
    query_positions: torch.Tensor  # [padded queries] int64, absolute; padding repeats the last
    mask: torch.Tensor  # [padded queries, num_key_pages * page_tokens] 0 or -inf, in the KV dtype


class PagedKV:
    """Key and value tensors of every layer: [num_kv_heads, num_pages + 1, page_tokens, head_dim].

    The last page is never given to a sequence and stays zero: copying it scrubs a page that a diverged
    (NaN) sequence has used, since a masked NaN would still poison its next owner.
    """

    def __init__(
        self, layers: list[tuple[int, int]], num_pages: int, page_tokens: int, dtype: torch.dtype, device: str
    ) -> None:
        self.page_tokens = page_tokens
        self.num_pages = num_pages
        shapes = [(heads, num_pages + 1, page_tokens, dim) for heads, dim in layers]
        self.keys = [torch.zeros(s, dtype=dtype, device=device) for s in shapes]
        self.values = [torch.zeros(s, dtype=dtype, device=device) for s in shapes]
        self._dtype = dtype
        self._device = device
        register()

    @property
    def name(self) -> str:
        """Under which transformers know the attention function."""
        return NAME

    def copy_pages(self, copies: np.ndarray) -> None:
        """Copy whole pages in every layer (copy on write, scrubbing); `copies` [num_copies, 2] int32 (from, to)."""
        pages = torch.from_numpy(copies).long().to(self._device)
        for store in (*self.keys, *self.values):
            store[:, pages[:, 1]] = store[:, pages[:, 0]]

    def plan(self, step: StepInput) -> StepPlan:
        """What the layers of one step share."""
        return StepPlan(step, self, self._dtype, self._device)


class StepPlan:
    """Everything about one step that does not change from layer to layer."""

    def __init__(self, step: StepInput, kv: PagedKV, dtype: torch.dtype, device: str) -> None:
        self.kv = kv
        self.slots = torch.from_numpy(step.slots).long().to(device)
        self.groups: list[QueryGroup] = []
        self._windowed: dict[tuple[int, int], torch.Tensor] = {}
        page = kv.page_tokens
        for s in range(len(step.kv_len)):
            row, end = int(step.cu_query[s]), int(step.cu_query[s + 1])
            pages = torch.from_numpy(step.pages[step.cu_pages[s] : step.cu_pages[s + 1]]).long().to(device)
            position = int(step.kv_len[s]) - (end - row)
            while row < end:
                size = min(page - position % page, end - row)
                num_pages = position // page + 1
                padded = -(-size // QUERY_MULTIPLE) * QUERY_MULTIPLE
                positions = torch.arange(position, position + padded, device=device)
                positions = positions.clamp_max(position + size - 1)
                hidden = torch.arange(num_pages * page, device=device)[None] > positions[:, None]
                mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
                self.groups.append(QueryGroup(row, row + size, pages[:num_pages], positions, mask))
                row += size
                position += size

    def mask(self, index: int, window: int | None) -> torch.Tensor:
        """Mask of group `index`; with a sliding window of `window` tokens if the layer has one."""
        group = self.groups[index]
        if window is None:
            return group.mask
        key = (index, window)
        if key not in self._windowed:
            keys = torch.arange(group.mask.shape[1], device=group.mask.device)[None]
            old = keys <= group.query_positions[:, None] - window
            self._windowed[key] = group.mask.masked_fill(old, -torch.inf)
        return self._windowed[key]


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, num_heads, num_rows, head_dim]
    key: torch.Tensor,  # [1, num_kv_heads, num_rows, head_dim]
    value: torch.Tensor,  # [1, num_kv_heads, num_rows, head_dim]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    plan: StepPlan | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write the step's keys and values, then attend; returns [1, num_rows, num_heads, head_dim]."""
    if plan is None:
        raise RuntimeError("paged attention needs the step's plan: run the model through LocalRunner")
    layer: Any = module.layer_idx  # set by transformers on every attention module
    keys, values = plan.kv.keys[layer], plan.kv.values[layer]
    heads, _, page, dim = keys.shape
    keys.view(heads, -1, dim).index_copy_(1, plan.slots, key[0].to(keys.dtype))
    values.view(heads, -1, dim).index_copy_(1, plan.slots, value[0].to(values.dtype))
    out = torch.empty_like(query)
    for index, group in enumerate(plan.groups):
        k = keys.index_select(1, group.pages).view(1, heads, -1, dim)
        v = values.index_select(1, group.pages).view(1, heads, -1, dim)
        q = query[:, :, group.start : group.end]
        size = group.end - group.start
        if size != len(group.query_positions):
            q = torch.nn.functional.pad(q, (0, 0, 0, len(group.query_positions) - size))
        attended = torch.nn.functional.scaled_dot_product_attention(
            q.to(k.dtype), k, v, attn_mask=plan.mask(index, sliding_window), scale=scaling, enable_gqa=True
        )
        out[:, :, group.start : group.end] = attended[:, :, :size].to(out.dtype)
    return out.transpose(1, 2).contiguous(), None


def _no_mask(*_: Any, **__: Any) -> None:
    """The plan carries the masks; transformers need not build one."""


def register() -> None:
    """Make `set_attn_implementation(NAME)` known to transformers. Idempotent."""
    AttentionInterface.register(NAME, paged_attention)
    AttentionMaskInterface.register(NAME, _no_mask)

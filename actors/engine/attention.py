"""Attention over paged keys and values, plugged into any transformers model by its attention registry.

A row's result is a function of its own sequence alone, bit for bit: keys are padded to whole pages and
masked, queries padded to a multiple of 8, and a group of queries is cut where the number of key pages
changes, so the same query always meets the same shapes whatever batch or chunk it came in. The rows of a drafted
tree are grouped by the path that they lie on, and its keys are gathered into the order of a chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from actors.engine import tree
from actors.engine.step import StepInput

NAME = "outrider_paged"
QUERY_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """Rows of one text, at consecutive positions, that see the same number of key pages."""

    rows: slice | torch.Tensor  # of the step: consecutive ones, or [num_rows] int64
    size: int
    pages: torch.Tensor | None  # [num_key_pages] int64; None: `slots`
    slots: torch.Tensor | None  # [num_key_pages * page_tokens] int64, key by key, of a tree
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

    def move_slots(self, moves: np.ndarray) -> None:
        """Move single tokens in every layer; `moves` [num_moves, 2] int32 slots (from, to), ascending within a text."""
        slots = torch.from_numpy(moves).long().to(self._device)
        for store in (*self.keys, *self.values):
            tokens = store.view(len(store), -1, store.shape[-1])
            tokens[:, slots[:, 1]] = tokens[:, slots[:, 0]]

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
        self._dtype = dtype
        self._device = device
        limbs = tree.limbs(step)
        forks = {limb.sequence: limb.fork for limb in limbs}
        for s in range(len(step.kv_len)):
            row, end = int(step.cu_query[s]), int(step.cu_query[s + 1])
            pages = torch.tensor(step.pages[step.cu_pages[s] : step.cu_pages[s + 1]], dtype=torch.int64, device=device)
            position = int(step.kv_len[s]) - (end - row)
            if s in forks:
                end = row + forks[s] - position
            for first, size, num_pages in self._cut(position, end - row):
                at = row + first - position
                self._add(slice(at, at + size), first, size, pages[:num_pages], None)
        for limb in limbs:
            self._add_limb(step, limb)

    def _cut(self, position: int, num_rows: int) -> Iterator[tuple[int, int, int]]:
        """(first position, number of rows, key pages) of the groups of rows at `position` and after."""
        page, end = self.kv.page_tokens, position + num_rows
        while position < end:
            size = min(page - position % page, end - position)
            yield position, size, position // page + 1
            position += size

    def _add_limb(self, step: StepInput, limb: tree.Limb) -> None:
        page = self.kv.page_tokens
        table = step.pages[step.cu_pages[limb.sequence] : step.cu_pages[limb.sequence + 1]]
        before = np.arange(limb.fork)
        held = np.concatenate([table[before // page] * page + before % page, step.slots[limb.rows]])
        start = limb.fork + limb.first
        for first, size, num_pages in self._cut(start, len(limb.rows) - limb.first):
            slots = np.full(num_pages * page, self.kv.num_pages * page)  # unseen: the page that stays zero
            seen = held[: first + size]
            slots[: len(seen)] = seen
            rows = limb.rows[first - limb.fork : first - limb.fork + size]
            at, slots_at = (torch.from_numpy(a).long().to(self._device) for a in (rows, slots))
            self._add(at, first, size, None, slots_at)

    def _add(
        self, rows: slice | torch.Tensor, position: int, size: int, pages: torch.Tensor | None,
        slots: torch.Tensor | None,
    ) -> None:
        """A group of `size` rows from `position` on."""
        padded = -(-size // QUERY_MULTIPLE) * QUERY_MULTIPLE
        positions = torch.arange(position, position + padded, device=self._device).clamp_max(position + size - 1)
        num_keys = (position // self.kv.page_tokens + 1) * self.kv.page_tokens
        hidden = torch.arange(num_keys, device=self._device)[None] > positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, -torch.inf)
        self.groups.append(QueryGroup(rows, size, pages, slots, positions, mask))

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
    heads, _, _, dim = keys.shape
    keys.view(heads, -1, dim).index_copy_(1, plan.slots, key[0].to(keys.dtype))
    values.view(heads, -1, dim).index_copy_(1, plan.slots, value[0].to(values.dtype))
    out = torch.empty_like(query)
    for index, group in enumerate(plan.groups):
        k, v = (_gathered(store, group) for store in (keys, values))
        q = query[:, :, group.rows]
        if group.size != len(group.query_positions):
            q = torch.nn.functional.pad(q, (0, 0, 0, len(group.query_positions) - group.size))
        attended = torch.nn.functional.scaled_dot_product_attention(
            q.to(k.dtype), k, v, attn_mask=plan.mask(index, sliding_window), scale=scaling, enable_gqa=True
        )
        out[:, :, group.rows] = attended[:, :, : group.size].to(out.dtype)
    return out.transpose(1, 2).contiguous(), None


def _gathered(store: torch.Tensor, group: QueryGroup) -> torch.Tensor:
    """What a group sees of one layer's keys or values: [1, num_kv_heads, num_keys, head_dim]."""
    heads, _, _, dim = store.shape
    if group.pages is not None:
        return store.index_select(1, group.pages).view(1, heads, -1, dim)
    assert group.slots is not None
    return store.view(heads, -1, dim).index_select(1, group.slots)[None]


def _no_mask(*_: Any, **__: Any) -> None:
    """The plan carries the masks; transformers need not build one."""


def register() -> None:
    """Make `set_attn_implementation(NAME)` known to transformers. Idempotent."""
    AttentionInterface.register(NAME, paged_attention)
    AttentionMaskInterface.register(NAME, _no_mask)

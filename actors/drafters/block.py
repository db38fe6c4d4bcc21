"""Drafting whole blocks in one pass over the target's features (DFlash, 2602.06036).

Of each sequence the keys and values are kept that the head makes of its context's features: they grow with what the
target commits, and a pass adds the block's own rows behind them, to be overwritten by the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from actors.drafter_specs import BlockSpec
from actors.drafters.copies import Copies
from actors.drafters.medusa import split
from actors.drafters.one_pass import Ask, OnePassDrafter
from actors.heads.block import BlockConfig, BlockHead
from actors.heads.format import check_fits, load_config
from actors.heads.serving import make_ready, precision
from actors.loading import checkpoint
from actors.loading.ends import load_ends
from actors.messages import ReplicaInfo
from actors.sampling.rows import LogitRows
from actors.spec import ModelSpec

_PAGE_TOKENS = 64  # memory grows by this


class ContextMemory:
    """Keys and values of the context of one sequence, [layers, 2, kv_heads, capacity, head_dim], and room for a block.

    Position p stands at p - `_origin`. [start, end) is held; what is before `start` goes when memory is next moved.
    """

    def __init__(self, config: BlockConfig, device: torch.device, dtype: torch.dtype) -> None:
        core = config.core
        self._block_size = config.block_size
        self._values = torch.empty(core.num_layers, 2, core.num_kv_heads, 0, core.head_dim, device=device, dtype=dtype)
        self._origin = self._start = self._end = 0

    @property
    def start(self) -> int:
        """First position held."""
        return self._start

    @property
    def end(self) -> int:
        """Position after the last one held."""
        return self._end

    @property
    def num_tokens(self) -> int:
        """Positions that there is memory for."""
        return int(self._values.shape[3])

    def num_tokens_with(self, end: int) -> int:
        """`num_tokens` once the positions up to `end` have been added."""
        if self._fits(end):
            return self.num_tokens
        return -(-(end + self._block_size - self._start) // _PAGE_TOKENS) * _PAGE_TOKENS

    def cut(self, end: int) -> None:
        """Hold nothing from position `end` on."""
        if end < self._end:
            self._end = end
            if end <= self._start:
                self.begin_at(end)

    def forget_before(self, start: int) -> None:
        """Nothing before `start` will be wanted again."""
        self._start = min(max(self._start, start), self._end)

    def begin_at(self, position: int) -> None:
        """Hold nothing; memory stays."""
        self._origin = self._start = self._end = position

    def append(self, end: int, layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Hold keys and values, [kv_heads, num_new, head_dim] of each layer, of the positions up to `end`."""
        self._make_room(end)
        place = slice(self._end - self._origin, end - self._origin)
        for i, (keys, values) in enumerate(layers):
            self._values[i, 0, :, place] = keys
            self._values[i, 1, :, place] = values
        self._end = end

    def with_block(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the context and, behind them, those of a block: [kv_heads, context + block, head_dim]."""
        self._make_room(self._end)
        place = self._end - self._origin
        self._values[layer, 0, :, place : place + self._block_size] = keys
        self._values[layer, 1, :, place : place + self._block_size] = values
        seen = self._values[layer, :, :, self._start - self._origin : place + self._block_size]
        return seen[0], seen[1]

    def _fits(self, end: int) -> bool:
        return end + self._block_size - self._origin <= self.num_tokens

    def _make_room(self, end: int) -> None:
        """Memory for the positions up to `end` and a block behind them."""
        if self._fits(end):
            return
        held = self._values[:, :, :, self._start - self._origin : self._end - self._origin]
        shape = list(self._values.shape)
        shape[3] = self.num_tokens_with(end)
        self._values, self._origin = self._values.new_empty(shape), self._start
        self._values[:, :, :, : held.shape[3]] = held


class BlockModel:
    """The head, and its pass."""

    def __init__(self, head: BlockHead, spec: ModelSpec) -> None:
        """`head` is made ready in place. `spec`: how the tier runs."""
        self._config = head.config
        self.vocabulary = head.vocabulary
        self._spec = spec
        self._head = head
        make_ready(head, spec)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """After which of the target's layers it reads."""
        return self._config.feature_layers

    @property
    def feature_size(self) -> int:
        """Values of a position's features."""
        return self._config.feature_size

    @property
    def window(self) -> int:
        """Context positions that a block sees."""
        return self._config.window

    @property
    def max_tokens(self) -> int:
        """The places after the newest token."""
        return self._config.block_size - 1

    def open(self) -> ContextMemory:
        """Memory of a new sequence."""
        return ContextMemory(self._config, torch.device(self._spec.device), torch.float32)

    def run(self, asks: Sequence[Ask[ContextMemory]]) -> list[LogitRows]:
        """Take up what is fresh of all contexts in one pass, then run all blocks in another."""
        size, device = self._config.block_size, self._spec.device
        with precision(self._spec):
            self._take_up(asks)
            newest = torch.tensor([ask.newest for ask in asks], device=device)
            rows = self._head.embed(newest).flatten(0, 1)[None]
            positions = torch.from_numpy(np.concatenate([
                np.arange(ask.num_tokens - 1, ask.num_tokens - 1 + size) for ask in asks
            ])).to(device)

            def attend(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
                return _attend(asks, size, layer, queries, keys, values)

            states = self._head.states(rows, positions, attend)[0]
            wanted = [ask.num_rows for ask in asks]
            needed = torch.cat([states[i * size + 1 : i * size + 1 + count] for i, count in enumerate(wanted)])
            logits = self._head.logits(needed).float()
        return split(LogitRows(logits), wanted)

    def _take_up(self, asks: Sequence[Ask[ContextMemory]]) -> None:
        given = [(ask.memory, ask.fresh) for ask in asks if ask.fresh is not None]
        if not given:
            return
        rows = torch.from_numpy(np.concatenate([fresh.rows for _, fresh in given]))
        positions = torch.from_numpy(np.concatenate([np.arange(fresh.start, fresh.end) for _, fresh in given]))
        layers = self._head.context(rows[None].to(self._spec.device), positions.to(self._spec.device))
        done = 0
        for memory, fresh in given:
            part = slice(done, done + len(fresh.rows))
            memory.append(fresh.end, [(keys[0, :, part], values[0, :, part]) for keys, values in layers])
            done = part.stop


def _attend(
    asks: Sequence[Ask[ContextMemory]], size: int, layer: int, queries: torch.Tensor, keys: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """Each block over its own context and rows: no mask, so heads that share keys are rows of one.

    queries [1, heads, rows, head_dim], keys and values [1, kv_heads, rows, head_dim], rows block by block.
    """
    kv_heads, width = keys.shape[1], keys.shape[3]
    out = torch.empty_like(queries)
    for i, ask in enumerate(asks):
        rows = slice(i * size, (i + 1) * size)
        seen_keys, seen_values = ask.memory.with_block(layer, keys[0, :, rows], values[0, :, rows])
        asked = queries[:, :, rows].reshape(1, kv_heads, -1, width)
        attended = functional.scaled_dot_product_attention(
            asked, seen_keys[None].to(asked.dtype), seen_values[None].to(asked.dtype)
        )
        out[:, :, rows] = attended.view(1, queries.shape[1], size, width)
    return out


def load_block(spec: ModelSpec, drafter: BlockSpec) -> BlockHead:
    """The head, for the target that `spec.model` names.

    Raises:
        BadHead: there is no such head, or it was trained for another target.
        ModelNotFound: the target's embedding cannot be had.
    """
    check_fits(load_config(drafter.head, BlockConfig), checkpoint.load_config(spec.model), drafter.head, spec.model)
    ends = load_ends(spec)
    return BlockHead.load(drafter.head, ends.embedding, ends.output)


def block_drafter(
    head: BlockHead, spec: ModelSpec, info: ReplicaInfo, law_support: int, copies: Copies | None = None
) -> OnePassDrafter[ContextMemory]:
    """A drafter of `head`, run as `spec` says; its sequences share `spec.kv_tokens` positions."""
    return OnePassDrafter(
        BlockModel(head, spec), info, law_support=law_support, max_sequences=spec.max_sequences,
        memory_tokens=spec.kv_tokens, idle_timeout_s=spec.idle_timeout_s, copies=copies,
    )

"""Paged attention for models whose layers run in the framework: one call per layer for all sequences of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from actors.engine.native.kv import NativeKV
from actors.engine.native.library import HeadsArgs, library
from actors.engine.native.step import NativeStep
from actors.engine.step import StepInput

NAME = "outrider_native"
MOST_HEAD_DIM = 256


class NativeAttention:
    """The attention of one runner: its keys and values, and a plan per step. See `actors.engine.runner.Attention`."""

    name = NAME

    def __init__(self, layers: list[tuple[int, int]], num_pages: int, page_tokens: int, kind: str) -> None:
        self._kv = NativeKV(layers, num_pages, page_tokens, kind)
        self._views = [self._kv.args(i) for i in range(len(layers))]
        AttentionInterface.register(NAME, _attend)
        AttentionMaskInterface.register(NAME, _no_mask)

    def copy_pages(self, copies: np.ndarray) -> None:
        """Copy whole pages in every layer; `copies` [num_copies, 2] int32 (from, to)."""
        self._kv.copy_pages(copies)

    def move_slots(self, moves: np.ndarray) -> None:
        """Move single tokens in every layer; `moves` [num_moves, 2] int32 slots (from, to), one after another."""
        self._kv.move_slots(moves)

    def plan(self, step: StepInput) -> NativePlan:
        """What the layers of one step share."""
        return NativePlan(self, NativeStep(step, self._kv.page_tokens))

    def attend(
        self, layer: int, step: NativeStep, heads: HeadsArgs, query: torch.Tensor, key: torch.Tensor,
        value: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Write keys and values [rows, kv heads, dim], attend with query [rows, heads, dim] -> as query."""
        out = torch.empty_like(query)
        num_threads = torch.get_num_threads()
        partials = torch.empty(step.partial_floats(heads, num_threads))
        library().paged_attention(
            self._views[layer], heads, step.args, query.data_ptr(), key.data_ptr(), value.data_ptr(),
            out.data_ptr(), partials.data_ptr(), num_threads,
        )  # fmt: skip
        return out


class NativePlan:
    """One step, as the attention function of every layer gets it."""

    def __init__(self, attention: NativeAttention, step: NativeStep) -> None:
        self.attention = attention
        self.step = step


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, num_heads, num_rows, head_dim]
    key: torch.Tensor,  # [1, num_kv_heads, num_rows, head_dim]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    plan: NativePlan | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    if plan is None:
        raise RuntimeError("paged attention needs the step's plan: run the model through LocalRunner")
    rows = [t[0].transpose(0, 1).float().contiguous() for t in (query, key, value)]
    dim = query.shape[3]
    heads = HeadsArgs(
        query.shape[1], key.shape[1], dim, sliding_window or 0, dim**-0.5 if scaling is None else scaling
    )
    layer: Any = module.layer_idx
    out = plan.attention.attend(layer, plan.step, heads, *rows)
    return out[None].to(query.dtype), None


def _no_mask(*_: Any, **__: Any) -> None:
    """The kernel masks by position; transformers need not build one."""

"""Rows of many sequences as one ragged step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actors.engine.kv.copies import parallel_copies
from actors.engine.step import Int32s, StepInput


@dataclass(frozen=True, slots=True)
class Part:
    """One sequence's share of a step."""

    ids: Int32s  # [num_rows] of positions start, start + 1, ...
    start: int
    pages: Int32s  # all that the sequence holds
    num_logits: int  # of its last rows


def pack(parts: Sequence[Part], page_tokens: int, copies: Sequence[tuple[int, int]] = ()) -> StepInput:
    """One step of `parts`, in their order; `copies` are meant one after another."""
    count = len(parts)
    lengths = np.fromiter((len(p.ids) for p in parts), np.int32, count)
    starts = np.fromiter((p.start for p in parts), np.int32, count)
    num_logits = np.fromiter((p.num_logits for p in parts), np.int32, count)
    cu_query = _cumulative(lengths)
    cu_pages = _cumulative(np.fromiter((len(p.pages) for p in parts), np.int32, count))
    cu_logits = _cumulative(num_logits)
    pages = np.concatenate([p.pages for p in parts])
    positions = np.arange(cu_query[-1], dtype=np.int32) + np.repeat(starts - cu_query[:-1], lengths)
    page_index = np.repeat(cu_pages[:-1], lengths) + positions // page_tokens
    logit_rows = np.arange(cu_logits[-1], dtype=np.int32) + np.repeat(cu_query[1:] - cu_logits[1:], num_logits)
    return StepInput(
        input_ids=np.concatenate([p.ids for p in parts]),
        positions=positions,
        slots=pages[page_index] * np.int32(page_tokens) + positions % np.int32(page_tokens),
        cu_query=cu_query,
        kv_len=starts + lengths,
        pages=pages,
        cu_pages=cu_pages,
        logit_rows=logit_rows,
        copies=np.array(parallel_copies(copies), np.int32).reshape(-1, 2),
    )


def _cumulative(counts: Int32s) -> Int32s:
    cumulative = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=cumulative[1:])
    return cumulative

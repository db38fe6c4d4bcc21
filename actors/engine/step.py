"""One packed forward pass: rows of many sequences in one ragged batch, no padding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

Int32s = npt.NDArray[np.int32]


_NUM_PARTS = 11


def _none() -> Int32s:
    return np.empty(0, np.int32)


def _no_pairs() -> Int32s:
    return np.empty((0, 2), np.int32)


@dataclass(frozen=True, slots=True)
class StepInput:
    """Rows of `num_sequences` sequences, one after another.

    Sequence s owns rows `[cu_query[s], cu_query[s + 1])`; after the pass it holds `kv_len[s]` keys, in the
    pages `pages[cu_pages[s]:cu_pages[s + 1]]` (page i holds positions `[i * page, (i + 1) * page)`).

    A sequence whose rows are a drafted tree keeps the row order in its pages: row r of it is written where position
    `kv_len - num_rows + r` of a chain would be, but its position is that along its path, and it sees the keys before
    the step's rows, its ancestors among these, and itself (`actors.engine.tree`).
    """

    input_ids: Int32s  # [num_rows]
    positions: Int32s  # [num_rows] absolute
    slots: Int32s  # [num_rows] where each row's key and value are written
    cu_query: Int32s  # [num_sequences + 1]
    kv_len: Int32s  # [num_sequences]
    pages: Int32s  # [total pages]
    cu_pages: Int32s  # [num_sequences + 1]
    logit_rows: Int32s  # [num_logits] rows whose logits are wanted
    copies: Int32s  # [num_copies, 2] pages (from, to) copied before the pass (copy on write), after the moves
    moves: Int32s = field(default_factory=_no_pairs)  # [num_moves, 2] slots (from, to): single tokens, one after
    # another, before all else (a verified tree's accepted path goes where a chain would have it)
    parents: Int32s = field(default_factory=_none)  # [num_rows] each row's parent among its sequence's rows, -1: the
    # keys before them; empty: no tree in this step

    def pack(self) -> Int32s:
        """One int32 vector, for broadcasting to tensor-parallel ranks."""
        parts = [
            self.input_ids, self.positions, self.slots, self.cu_query, self.kv_len,
            self.pages, self.cu_pages, self.logit_rows, self.copies.reshape(-1), self.moves.reshape(-1), self.parents,
        ]
        return np.concatenate([np.array([len(p) for p in parts], np.int32), *parts]).astype(np.int32)

    @classmethod
    def unpack(cls, packed: Int32s) -> StepInput:
        """Inverse of `pack`."""
        lengths = packed[:_NUM_PARTS]
        parts = np.split(packed[_NUM_PARTS:], np.cumsum(lengths)[:-1])
        ids, positions, slots, cu_query, kv_len, pages, cu_pages, logit_rows, copies, moves, parents = parts
        return cls(
            ids, positions, slots, cu_query, kv_len, pages, cu_pages, logit_rows, copies.reshape(-1, 2),
            moves.reshape(-1, 2), parents,
        )


class ModelRunner(Protocol):
    """Runs packed steps on one model; the only thing in the engine that touches tensors of the model."""

    @property
    def vocab_size(self) -> int:
        """Rows of the output head."""
        ...

    @property
    def shares_head(self) -> bool:
        """Whether every tensor-parallel rank works on the logits, and so must know which rows are wanted."""
        ...

    def forward(self, step: StepInput) -> torch.Tensor:
        """Logits of `step.logit_rows`: [num_logits, vocab_size] float32 on CPU."""
        ...

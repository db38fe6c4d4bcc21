"""One packed forward pass: rows of many sequences in one ragged batch, no padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepInput:
    """Rows of `num_sequences` sequences, one after another.

    Sequence s owns rows `[cu_query[s], cu_query[s + 1])`; after the pass it holds `kv_len[s]` keys, in the
    pages `pages[cu_pages[s]:cu_pages[s + 1]]` (page i holds positions `[i * page, (i + 1) * page)`).
    """

    input_ids: Int32s  # [num_rows]
    positions: Int32s  # [num_rows] absolute
    slots: Int32s  # [num_rows] where each row's key and value are written
    cu_query: Int32s  # [num_sequences + 1]
    kv_len: Int32s  # [num_sequences]
    pages: Int32s  # [total pages]
    cu_pages: Int32s  # [num_sequences + 1]
    logit_rows: Int32s  # [num_logits] rows whose logits are wanted
    copies: Int32s  # [num_copies, 2] pages (from, to) copied before the pass (copy on write)

    def pack(self) -> Int32s:
        """One int32 vector, for broadcasting to tensor-parallel ranks."""
        parts = [
            self.input_ids, self.positions, self.slots, self.cu_query, self.kv_len,
            self.pages, self.cu_pages, self.logit_rows, self.copies.reshape(-1),
        ]
        return np.concatenate([np.array([len(p) for p in parts], np.int32), *parts]).astype(np.int32)

    @classmethod
    def unpack(cls, packed: Int32s) -> StepInput:
        """Inverse of `pack`."""
        lengths = packed[:9]
        parts = np.split(packed[9:], np.cumsum(lengths)[:-1])
        ids, positions, slots, cu_query, kv_len, pages, cu_pages, logit_rows, copies = parts
        return cls(ids, positions, slots, cu_query, kv_len, pages, cu_pages, logit_rows, copies.reshape(-1, 2))


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

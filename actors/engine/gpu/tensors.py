"""A step's integers on the device, in one buffer: one copy from the host per step, at addresses that stay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from actors.engine.gpu.work import NUM_FIELDS, Work
from actors.engine.step import Int32s, StepInput


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Room for a step. Padding fills what a step leaves over."""

    num_rows: int
    num_items: int
    num_tail: int
    num_sequences: int  # rows of the page table
    num_pages: int  # columns of the page table
    num_words: int = 0  # words of a row's ancestor mask; 0: no tree is masked by bits

    @classmethod
    def of(cls, work: Work, num_rows: int) -> Shape:
        """Exactly the room that a step needs."""
        return cls(
            num_rows, len(work.items), len(work.tail_rows), len(work.table), work.table.shape[1], work.num_words
        )

    def holds(self, other: Shape) -> bool:
        """Whether a step of shape `other` fits in, its padding rows included.

        A padding row is a sequence of one token: it needs an item and a place in the tail, but no pages.
        """
        padding = self.num_rows - other.num_rows
        return (
            padding >= 0
            and other.num_items + padding <= self.num_items
            and other.num_tail + padding <= self.num_tail
            and other.num_sequences <= self.num_sequences
            and other.num_pages <= self.num_pages
            and other.num_words <= self.num_words
        )

    def max_keys(self, page_tokens: int) -> int:
        """No row sees more keys than this."""
        return self.num_pages * page_tokens + self.num_rows


class StepTensors:
    """The views that kernels and model read; `fill` overwrites them in place."""

    def __init__(self, shape: Shape, device: str) -> None:
        self.shape = shape
        sizes = {
            "input_ids": shape.num_rows,
            "positions": shape.num_rows,
            "slots": shape.num_rows,
            "tail_rows": shape.num_tail,
            "tail_slots": shape.num_tail,
            "items": shape.num_items * NUM_FIELDS,
            "table": shape.num_sequences * shape.num_pages,
            "ancestors": shape.num_rows * shape.num_words,
            "splitting": 1,
        }
        on_gpu = torch.device(device).type == "cuda"
        total = sum(sizes.values())
        self._flat = torch.zeros(total, dtype=torch.int32, device=device)
        self._staging = torch.zeros(total, dtype=torch.int32, pin_memory=on_gpu)
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        ends = np.cumsum(list(sizes.values()))
        spans = {name: slice(int(end) - size, int(end)) for (name, size), end in zip(sizes.items(), ends, strict=True)}
        host = self._staging.numpy()
        self._host: dict[str, Int32s] = {name: host[span] for name, span in spans.items()}
        self.input_ids = self._flat[spans["input_ids"]]  # [num_rows]
        self.positions = self._flat[spans["positions"]]  # [num_rows]
        self.slots = self._flat[spans["slots"]]  # [num_rows]
        self.tail_rows = self._flat[spans["tail_rows"]]  # [num_tail]
        self.tail_slots = self._flat[spans["tail_slots"]]  # [num_tail]
        self.items = self._flat[spans["items"]]  # [num_items * NUM_FIELDS]
        self.table = self._flat[spans["table"]]  # [num_sequences * num_pages]
        self.ancestors = self._flat[spans["ancestors"]]  # [num_rows * num_words]
        self.splitting = self._flat[spans["splitting"]]  # [1] keys per split

    def fill(self, step: StepInput, work: Work, split_keys: int, trash_slot: int) -> None:
        """Put a step in, padded: every row too many is token 0 of a text of its own, written to `trash_slot`.

        Padding rows thus do what other rows do, on numbers that are always finite, and nothing reads what they
        write. The step must fit (`Shape.holds`).
        """
        if self._copied is not None:
            self._copied.synchronize()  # the last copy may still be reading the staging buffer
        host, shape = self._host, self.shape
        num_rows, num_tail, num_items = len(step.input_ids), len(work.tail_rows), len(work.items)
        padding = shape.num_rows - num_rows
        for name, values, filler in (
            ("input_ids", step.input_ids, 0), ("positions", step.positions, 0), ("slots", step.slots, trash_slot)
        ):
            host[name][:num_rows] = values
            host[name][num_rows:] = filler
        pad_rows = np.arange(num_rows, shape.num_rows, dtype=np.int32)
        host["tail_rows"].fill(0)
        host["tail_rows"][:num_tail] = work.tail_rows
        host["tail_rows"][num_tail : num_tail + padding] = pad_rows
        host["tail_slots"][:] = host["slots"][host["tail_rows"]]
        items = host["items"].reshape(shape.num_items, NUM_FIELDS)
        items.fill(0)
        items[:num_items] = work.items
        pad_items = items[num_items : num_items + padding]
        pad_items[:, 2] = num_tail + np.arange(padding)
        pad_items[:, 4:6] = 1
        table = host["table"].reshape(shape.num_sequences, shape.num_pages)
        table.fill(0)
        table[: work.table.shape[0], : work.table.shape[1]] = work.table
        if work.ancestors is not None:
            ancestors = host["ancestors"].reshape(shape.num_rows, shape.num_words)
            ancestors.fill(0)
            ancestors[:num_rows, : work.num_words] = work.ancestors
        host["splitting"][0] = split_keys
        self._flat.copy_(self._staging, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def clear(self, split_keys: int, trash_slot: int) -> None:
        """Padding rows alone."""
        self.fill(_EMPTY_STEP, _EMPTY_WORK, split_keys, trash_slot)


_NONE = np.empty(0, np.int32)
_EMPTY_STEP = StepInput(
    _NONE, _NONE, _NONE, np.zeros(1, np.int32), _NONE, _NONE, np.zeros(1, np.int32), _NONE, np.empty((0, 2), np.int32)
)
_EMPTY_WORK = Work(np.empty((0, NUM_FIELDS), np.int32), _NONE, np.empty((0, 0), np.int32))


def longest_keys(step: StepInput) -> int:
    """The most keys that any row of the step sees."""
    return int(step.kv_len.max(initial=1))


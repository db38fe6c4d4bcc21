"""A batch under a clock moved by hand, over a model whose text shows any slip of its KV memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from actors.engine.batch import Batch
from actors.engine.step import Best, Int32s, StepInput
from actors.messages import Ids
from actors.spec import ModelSpec
from tests.unit.engine.fakes import VOCAB, Clock, Runner


def make(runner: Any = None, **changes: Any) -> tuple[Batch, Clock, Any]:
    settings: dict[str, Any] = {"tier": 1, "model": "x", "page_tokens": 16, "kv_tokens": 160, **changes}
    clock, runner = Clock(), runner or Runner()
    return Batch(runner, ModelSpec(**settings), 1024, clock=clock), clock, runner


def next_id(ids: Ids) -> int:
    """The text of the model below: its next token is a function of all tokens before."""
    return zlib.crc32(ids.astype(np.int32).tobytes()) % VOCAB


class Hashing:
    """A model whose logits are a function of the tokens it finds in its KV memory, so that any slip shows.

    A slot holds the token written there; a slot of a free page holds whatever was last written.
    """

    vocab_size = VOCAB

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self._page = page_tokens
        self._slots = np.full((num_pages + 1, page_tokens), -1, np.int32)

    def forward(self, step: StepInput) -> torch.Tensor:
        """One-hot rows."""
        flat = self._slots.reshape(-1)
        for source, target in step.moves:  # one after another
            flat[target] = flat[source]
        self._slots[step.copies[:, 1]] = self._slots[step.copies[:, 0]]
        self._slots.reshape(-1)[step.slots] = step.input_ids
        logits = torch.zeros(len(step.logit_rows), VOCAB)
        for out, row in enumerate(step.logit_rows):
            s = int(np.searchsorted(step.cu_query, row, side="right")) - 1
            held = self._slots[step.pages[step.cu_pages[s] : step.cu_pages[s + 1]]].reshape(-1)[: step.kv_len[s]]
            assert (held >= 0).all()
            logits[out, next_id(held[_seen(step, s, int(row))])] = 1.0
        return logits


class Decoding(Hashing):
    """One that makes several passes in a call; `most` ends some calls early, as a call that waits would."""

    decodes = True

    def __init__(self, num_pages: int, page_tokens: int, most: Iterator[int]) -> None:
        super().__init__(num_pages, page_tokens)
        self._most = most
        self.num_calls = 0

    def decode(self, step: StepInput, num_passes: int, stop: Int32s) -> Best:
        """Pass by pass."""
        self.num_calls += 1
        ids: list[Ids] = []
        for _ in range(min(num_passes, next(self._most))):
            ids.append(self.forward(step).argmax(-1).numpy().astype(np.int32))
            positions = step.kv_len
            every = np.arange(len(positions) + 1, dtype=np.int32)
            pages = step.pages[step.cu_pages[:-1] + np.minimum(positions // self._page, np.diff(step.cu_pages) - 1)]
            step = StepInput(
                ids[-1], positions, pages * self._page + positions % self._page, every, positions + 1, step.pages,
                step.cu_pages, every[:-1], np.empty((0, 2), np.int32),
            )
        return Best(np.array(ids), np.ones((len(ids), len(step.kv_len)), np.float32))


def _seen(step: StepInput, s: int, row: int) -> Ids:
    """Places, in the text of sequence `s`, of the tokens that a row attends to: in a tree, its own path alone."""
    first, end = int(step.cu_query[s]), int(step.cu_query[s + 1])
    start = int(step.kv_len[s]) - (end - first)
    path: list[int] = []
    node = row - first
    while node >= 0:
        path.append(start + node)
        node = node - 1 if not len(step.parents) else int(step.parents[first + node])
    return np.array([*range(start), *path[::-1]], np.int32)

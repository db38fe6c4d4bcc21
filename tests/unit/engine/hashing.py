"""A batch under a clock moved by hand, over a model whose text shows any slip of its KV memory."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch

from actors.engine.batch import Batch
from actors.engine.step import StepInput
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

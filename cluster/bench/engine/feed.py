"""Packed steps of one known text on a bare runner, without an engine: for timing passes and reading logits."""

from __future__ import annotations

import numpy as np
import torch

from actors.engine.step import ModelRunner, StepInput
from actors.messages import Ids


class TextFeed:
    """Runs any stretch of `ids` on `runner`; page i holds positions [i * page_tokens, (i + 1) * page_tokens).

    Running a stretch again writes the same keys to the same places, so stretches may be repeated in any order once
    what is before them has been run. The runner must belong to nobody else meanwhile.
    """

    def __init__(self, runner: ModelRunner, ids: Ids, page_tokens: int) -> None:
        self._runner = runner
        self._ids = np.asarray(ids, np.int32)
        self._page_tokens = page_tokens

    def run(self, start: int, end: int, num_logits: int | None = None) -> torch.Tensor:
        """Run ids[start:end]; logits of the last `num_logits` rows (None: of all), [num_logits, vocab] float32."""
        size = end - start
        first_logit = 0 if num_logits is None else size - num_logits
        num_pages = -(-end // self._page_tokens)
        return self._runner.forward(StepInput(
            input_ids=self._ids[start:end],
            positions=np.arange(start, end, dtype=np.int32),
            slots=np.arange(start, end, dtype=np.int32),
            cu_query=np.array([0, size], np.int32),
            kv_len=np.array([end], np.int32),
            pages=np.arange(num_pages, dtype=np.int32),
            cu_pages=np.array([0, num_pages], np.int32),
            logit_rows=np.arange(first_logit, size, dtype=np.int32),
            copies=np.empty((0, 2), np.int32),
        ))

    def prefill(self, end: int, chunk: int = 256) -> None:
        """Run ids[:end] in chunks, without logits but the last row's."""
        for start in range(0, end, chunk):
            self.run(start, min(start + chunk, end), num_logits=1)

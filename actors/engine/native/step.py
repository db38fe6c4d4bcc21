"""A `StepInput` as the kernels read it."""

from __future__ import annotations

import numpy as np

from actors.engine.native.library import CHUNK_TOKENS, GROUP_ROWS, LANES, StepArgs, address
from actors.engine.step import StepInput


class NativeStep:
    """Holds the arrays that `args` points to. Rows of a sequence are cut into groups that share its pages' loads."""

    def __init__(self, step: StepInput, page_tokens: int) -> None:
        counts = -(-np.diff(step.cu_query) // GROUP_ROWS)  # groups of each sequence
        sequence = np.repeat(np.arange(len(counts)), counts)
        first = np.cumsum(counts) - counts
        within = np.arange(len(sequence)) - first[sequence]
        starts = step.cu_query[sequence] + GROUP_ROWS * within
        group_rows = np.append(starts, len(step.input_ids)).astype(np.int32)
        self._arrays = [
            np.ascontiguousarray(a, np.int32)
            for a in (
                step.input_ids, step.positions, step.slots, step.pages, step.logit_rows, group_rows,
                step.cu_pages[sequence],
            )
        ]  # fmt: skip
        self._num_chunks = -(-int(step.kv_len.max()) // CHUNK_TOKENS)
        self.args = StepArgs(
            len(step.input_ids), len(step.logit_rows), len(sequence), page_tokens, *map(address, self._arrays)
        )

    def partial_floats(self, num_heads: int, num_kv_heads: int, head_dim: int, num_threads: int) -> int:
        """Scratch that `attend` needs where chunks of few rows are shared out to threads (`src/attention.c`)."""
        if num_threads == 1 or self.args.num_groups * num_kv_heads >= 4 * num_threads or self._num_chunks == 1:
            return 0
        rows: int = self.args.num_rows
        return rows * num_heads * self._num_chunks * (-(-head_dim // LANES) + 1) * LANES

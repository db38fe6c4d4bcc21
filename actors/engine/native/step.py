"""A `StepInput` as the kernels read it."""

from __future__ import annotations

import numpy as np

from actors.engine import tree
from actors.engine.native.library import GROUP_ROWS, HeadsArgs, StepArgs, address, library
from actors.engine.step import Int32s, StepInput


class NativeStep:
    """Holds the arrays that `args` points to. Rows of a sequence are cut into groups that share its pages' loads."""

    def __init__(self, step: StepInput, page_tokens: int) -> None:
        if len(step.input_ids) == len(step.kv_len):  # a row, and so a group, of each sequence
            group_rows, group_pages = step.cu_query, step.cu_pages[:-1]
        else:
            group_rows, group_pages = _groups(step)
        self._arrays = [
            np.ascontiguousarray(a, np.int32)
            for a in (
                step.input_ids, step.positions, step.slots, step.pages, step.logit_rows, group_rows, group_pages
            )
        ]
        if len(step.parents):
            self._arrays += _trees(step)
        self.args = StepArgs(
            len(step.input_ids), len(step.logit_rows), len(group_pages), page_tokens, *map(address, self._arrays)
        )
        if len(step.layers):
            self._arrays.append(np.ascontiguousarray(step.layers, np.int32))
            self.args.layers, self.args.num_layers = address(self._arrays[-1]), len(step.layers)
        self.args.wants_hidden = step.wants_hidden

    def partial_floats(self, heads: HeadsArgs, num_threads: int) -> int:
        """Scratch that `attend` needs where chunks of few rows are shared out to threads (`src/attention.c`)."""
        return int(library().partial_floats(heads, self.args, num_threads))


def _groups(step: StepInput) -> tuple[Int32s, Int32s]:
    """First row of each group, and the end; where the pages of each group's sequence begin."""
    counts = -(-np.diff(step.cu_query) // GROUP_ROWS)  # groups of each sequence
    sequence = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    within = np.arange(len(sequence)) - first[sequence]
    starts = step.cu_query[sequence] + GROUP_ROWS * within
    return np.append(starts, len(step.input_ids)).astype(np.int32), step.cu_pages[sequence]


def _trees(step: StepInput) -> list[Int32s]:
    """`forks`, `tails` and `tail_slots` as in `outrider.h`; nothing if no row of the step needs them."""
    limbs = tree.limbs(step)
    if not limbs:
        return []
    forks = np.full(len(step.input_ids), np.iinfo(np.int32).max, np.int32)
    tails = np.zeros(len(step.input_ids), np.int32)
    num_listed = 0
    for limb in limbs:
        own = limb.rows[limb.first :]
        forks[own], tails[own] = limb.fork, num_listed
        num_listed += len(limb.rows)
    return [forks, tails, step.slots[np.concatenate([limb.rows for limb in limbs])]]

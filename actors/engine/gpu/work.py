"""Cutting a step into work items of the attention kernel. Pure integers.

An item is a run of query rows along one text. Items of one sequence share its page table; what the step itself
adds, the *tail*, is listed row by row, so a tree needs no more than several tails over the same pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from actors.engine import tree
from actors.engine.step import Int32s, StepInput

NUM_FIELDS = 8
WORK_FIELDS = ("table_row", "committed", "tail_start", "first", "num_rows", "num_tail", "is_tree", "unused")


@dataclass(frozen=True, slots=True)
class Work:
    """A step as the attention kernel sees it; see `kernels` for how it reads this."""

    items: Int32s  # [num_items, NUM_FIELDS]
    tail_rows: Int32s  # [num_tail] rows of the step, tail after tail
    table: Int32s  # [num_sequences, num_pages] pages of the committed keys; unused entries are 0
    ancestors: Int32s | None = None  # [num_rows, num_words] (tree.ancestor_words); None: no tree is masked by bits

    @property
    def num_words(self) -> int:
        """Words of a row's ancestor mask."""
        return 0 if self.ancestors is None else self.ancestors.shape[1]


def committed_tokens(step: StepInput) -> Int32s:
    """Keys that each sequence held before the step: [num_sequences]."""
    return step.kv_len - np.diff(step.cu_query)


def cut(
    step: StepInput, page_tokens: int, rows_per_item: int, parents: Int32s | None = None, tree_by_bits: bool = False,
) -> Work:
    """Items of at most `rows_per_item` rows.

    `parents` [num_rows], relative to each sequence's first row (`tree`), marks sequences whose rows are a
    tree; None: all are chains. By default a tree is walked path by path, which gives a row the bits of its tokens fed
    as a chain, and reads the committed keys once per path; with `tree_by_bits` they are read once per item and every
    row masks the tail by its ancestors.

    Raises:
        BadTree: parents that describe no tree.
    """
    committed = committed_tokens(step)
    table = _page_table(step, committed, page_tokens)
    trees = _tree_sequences(step, parents)
    if parents is None or not trees:
        return Work(_chain_items(step, committed, rows_per_item), _all_rows(step), table)
    if tree_by_bits:
        return _by_bits(step, committed, table, rows_per_item, parents, trees)
    return _by_paths(step, committed, table, rows_per_item, parents, trees)


def _all_rows(step: StepInput) -> Int32s:
    return np.arange(len(step.input_ids), dtype=np.int32)


def _tree_sequences(step: StepInput, parents: Int32s | None) -> list[int]:
    if parents is None:
        return []
    found = []
    for s in range(len(step.kv_len)):
        own = parents[step.cu_query[s] : step.cu_query[s + 1]]
        tree.check(own)
        if not tree.is_chain(own):
            found.append(s)
    return found


def _page_table(step: StepInput, committed: Int32s, page_tokens: int) -> Int32s:
    needed = -(-committed // page_tokens)
    width = int(needed.max(initial=0))
    table = np.zeros((len(needed), width), np.int32)
    columns = np.arange(width)
    used = columns[None] < needed[:, None]
    flat = (step.cu_pages[:-1, None] + columns[None])[used]
    table[used] = step.pages[flat]
    return table


def _chain_items(step: StepInput, committed: Int32s, rows_per_item: int) -> Int32s:
    """Items of all sequences as chains, the step's rows being the tail."""
    num_rows = np.diff(step.cu_query)
    counts = -(-num_rows // rows_per_item)
    sequence = np.repeat(np.arange(len(counts)), counts)
    index = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
    items = np.zeros((len(sequence), NUM_FIELDS), np.int32)
    first = index * rows_per_item
    size = np.minimum(rows_per_item, num_rows[sequence] - first)
    items[:, 0] = sequence
    items[:, 1] = committed[sequence]
    items[:, 2] = step.cu_query[:-1][sequence]
    items[:, 3] = first
    items[:, 4] = size
    items[:, 5] = first + size
    return items


def _by_bits(
    step: StepInput, committed: Int32s, table: Int32s, rows_per_item: int, parents: Int32s, trees: list[int]
) -> Work:
    items = _chain_items(step, committed, rows_per_item)
    num_rows = np.diff(step.cu_query)
    num_words = -(-int(num_rows[trees].max()) // tree.WORD_BITS)
    ancestors = np.zeros((len(step.input_ids), num_words), np.int32)
    for s in trees:
        start, end = int(step.cu_query[s]), int(step.cu_query[s + 1])
        ancestors[start:end] = tree.ancestor_words(parents[start:end], num_words)
    masked = np.isin(items[:, 0], trees)
    items[masked, 5] = num_rows[items[masked, 0]]
    items[masked, 6] = 1
    return Work(items, _all_rows(step), table, ancestors)


def _by_paths(
    step: StepInput, committed: Int32s, table: Int32s, rows_per_item: int, parents: Int32s, trees: list[int]
) -> Work:
    chains = _chain_items(step, committed, rows_per_item)
    items = [chains[~np.isin(chains[:, 0], trees)]]
    tails = [_all_rows(step)]
    tail_start = len(step.input_ids)
    for s in trees:
        start, end = int(step.cu_query[s]), int(step.cu_query[s + 1])
        for path in tree.paths(parents[start:end]):
            length = len(path.rows)
            firsts = np.arange(path.first, length, rows_per_item)
            of_path = np.zeros((len(firsts), NUM_FIELDS), np.int32)
            of_path[:, 0] = s
            of_path[:, 1] = committed[s]
            of_path[:, 2] = tail_start
            of_path[:, 3] = firsts
            of_path[:, 4] = np.minimum(rows_per_item, length - firsts)
            of_path[:, 5] = of_path[:, 3] + of_path[:, 4]
            items.append(of_path)
            tails.append(path.rows + np.int32(start))
            tail_start += length
    return Work(np.concatenate(items), np.concatenate(tails).astype(np.int32), table)

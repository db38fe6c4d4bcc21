"""Shapes of drafted token trees: who descends from whom. Pure integers.

A tree is given by `parents` [num_rows] int32: the index, among the rows of the same sequence, of the row that a
row continues; -1 continues the committed text. Rows come after their parents.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from actors.engine.step import Int32s, StepInput

WORD_BITS = 32


class BadTree(ValueError):
    """The parents do not describe a tree."""


@dataclass(frozen=True, slots=True)
class Path:
    """A path from the committed text down: its rows, of which `rows[first:]` belong to no earlier path."""

    rows: Int32s  # [depth of the last row + 1]
    first: int


@dataclass(frozen=True, slots=True)
class Limb:
    """A path of a step's tree from where the tree first branches; before that, keys lie where a chain has them."""

    sequence: int  # index in the step
    fork: int  # position of its first row
    rows: Int32s  # [length] rows of the step, from position `fork` on
    first: int  # `rows[first:]` belong to no earlier limb


def check(parents: Int32s) -> None:
    """Raise BadTree unless every row's parent is an earlier row or -1."""
    wrong = np.flatnonzero((parents < -1) | (parents >= np.arange(len(parents))))
    if len(wrong):
        row = int(wrong[0])
        raise BadTree(f"row {row} names row {int(parents[row])} as its parent: parents come first, -1 is the text")


def is_chain(parents: Int32s) -> bool:
    """Whether every row continues the one before it."""
    return bool((parents == np.arange(-1, len(parents) - 1)).all())


def depths(parents: Int32s) -> Int32s:
    """How many drafted tokens lie before each row on its path: [num_rows] int32."""
    out = np.zeros(len(parents), np.int32)
    for row, parent in enumerate(parents.tolist()):
        if parent >= 0:
            out[row] = out[parent] + 1
    return out


def ancestor_words(parents: Int32s, num_words: int) -> Int32s:
    """Bit b of word w of a row is set iff the row is, or descends from, row 32 w + b: [num_rows, num_words] int32."""
    if len(parents) > num_words * WORD_BITS:
        raise BadTree(f"a tree of {len(parents)} rows needs more than {num_words} words of {WORD_BITS} bits")
    words = np.zeros((len(parents), num_words), np.uint32)
    for row, parent in enumerate(parents.tolist()):
        if parent >= 0:
            words[row] = words[parent]
        words[row, row // WORD_BITS] |= np.uint32(1 << (row % WORD_BITS))
    return words.view(np.int32)


def paths(parents: Int32s) -> list[Path]:
    """Few paths that together hold every row exactly once as their own; each follows the deepest child first."""
    num_rows = len(parents)
    height = np.zeros(num_rows, np.int64)
    children: list[list[int]] = [[] for _ in range(num_rows)]
    roots: list[int] = []
    for row in range(num_rows - 1, -1, -1):
        parent = int(parents[row])
        (roots if parent < 0 else children[parent]).append(row)
        if parent >= 0:
            height[parent] = max(height[parent], height[row] + 1)
    found: list[Path] = []
    open_branches = [(root, [root]) for root in roots]  # the last one is taken first: rows ascend
    while open_branches:
        row, trail = open_branches.pop()
        first = len(trail) - 1
        while children[row]:
            longest = max(children[row], key=lambda child: (height[child], -child))
            open_branches.extend((child, [*trail, child]) for child in children[row] if child != longest)
            row = longest
            trail.append(row)
        found.append(Path(np.array(trail, np.int32), first))
    return found


def limbs(step: StepInput) -> list[Limb]:
    """The limbs of all trees in a step. Empty if there are none, or only chains. Raises BadTree."""
    if not len(step.parents):
        return []
    found: list[Limb] = []
    for s in range(len(step.kv_len)):
        row, end = int(step.cu_query[s]), int(step.cu_query[s + 1])
        parents = step.parents[row:end]
        check(parents)
        branching = np.flatnonzero(parents != np.arange(-1, len(parents) - 1))
        if not len(branching):
            continue
        trunk = int(parents[branching].min()) + 1  # rows that all later ones descend from
        fork = int(step.kv_len[s]) - (end - row) + trunk
        below = parents[trunk:] - np.int32(trunk)  # at least -1: the last row of the trunk
        found.extend(Limb(s, fork, path.rows + np.int32(row + trunk), path.first) for path in paths(below))
    return found

"""Shapes of token trees: ancestors and path covers agree with following the parents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.engine import tree
from actors.engine.step import Int32s


@st.composite
def trees(draw: st.DrawFn) -> Int32s:
    size = draw(st.integers(1, 70))
    return np.array([draw(st.integers(-1, row - 1)) for row in range(size)], np.int32)


def lineage(parents: Int32s, row: int) -> list[int]:
    """The row and all it descends from, oldest first."""
    found = []
    while row >= 0:
        found.append(row)
        row = int(parents[row])
    return found[::-1]


@given(trees())
def test_a_row_sees_itself_and_what_it_descends_from(parents: Int32s) -> None:
    num_words = -(-len(parents) // tree.WORD_BITS)
    words = tree.ancestor_words(parents, num_words)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    for row in range(len(parents)):
        assert np.flatnonzero(bits[row]).tolist() == sorted(lineage(parents, row))


@given(trees())
def test_paths_own_every_row_once_and_spell_its_lineage(parents: Int32s) -> None:
    owned = []
    for path in tree.paths(parents):
        assert 0 <= path.first < len(path.rows)
        assert path.rows.tolist() == lineage(parents, int(path.rows[-1]))
        owned.extend(path.rows[path.first :].tolist())
    assert sorted(owned) == list(range(len(parents)))


@given(trees())
def test_there_is_one_path_per_leaf(parents: Int32s) -> None:
    leaves = set(range(len(parents))) - set(parents.tolist())
    assert {int(path.rows[-1]) for path in tree.paths(parents)} == leaves
    assert len(tree.paths(parents)) == len(leaves)


@given(trees())
def test_depth_counts_the_drafted_tokens_before_a_row(parents: Int32s) -> None:
    assert tree.depths(parents).tolist() == [len(lineage(parents, row)) - 1 for row in range(len(parents))]


def test_only_a_chain_is_a_chain() -> None:
    assert tree.is_chain(np.array([-1, 0, 1], np.int32))
    assert not tree.is_chain(np.array([-1, 0, 0], np.int32))
    assert not tree.is_chain(np.array([-1, -1], np.int32))


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 2, 0], [-2]])
def test_a_parent_that_is_no_earlier_row_is_refused(parents: list[int]) -> None:
    with pytest.raises(tree.BadTree, match="as its parent"):
        tree.check(np.array(parents, np.int32))


def test_a_tree_that_needs_more_words_is_refused() -> None:
    with pytest.raises(tree.BadTree, match="33 rows"):
        tree.ancestor_words(np.full(33, -1, np.int32), 1)

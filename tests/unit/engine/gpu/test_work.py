"""Work items cover every row once, with exactly the keys that it may see."""

from __future__ import annotations

import numpy as np
import pytest

from actors.engine.gpu.tensors import Shape, StepTensors
from actors.engine.gpu.work import NUM_FIELDS, Work, cut
from actors.engine.step import Int32s, StepInput
from actors.engine.tree import BadTree
from tests.unit.engine.gpu.fakes import Pages, random_tree
from tests.unit.engine.test_tree import lineage

PAGE = 8


def example(trees: bool) -> tuple[Pages, StepInput, Int32s, list[tuple[int, int, Int32s]]]:
    rng = np.random.default_rng(3)
    pages = Pages(60, PAGE, 4)
    sizes = [(0, 9), (30, 1), (17, 11), (8, 6)]
    parts = [(s, start, np.arange(n, dtype=np.int32)) for s, (start, n) in enumerate(sizes)]
    chains = [np.arange(-1, n - 1, dtype=np.int32) for _, n in sizes]
    parents = [chains[0], chains[1], random_tree(11, rng), random_tree(6, rng)] if trees else chains
    return pages, pages.step(parts, parents), np.concatenate(parents), parts


def seen_slots(step: StepInput, work: Work, row: int) -> list[int]:
    """Slots of the keys that a row sees, in the order of the text, by reading the work as the kernel does."""
    found = []
    for table_row, committed, start, first, num_rows, num_tail, is_tree, _ in work.items.tolist():
        rows = work.tail_rows[start : start + num_tail].tolist()
        if row not in rows[first : first + num_rows]:
            continue
        assert not found, "a row belongs to one item"
        keys = [int(work.table[table_row][j // PAGE]) * PAGE + j % PAGE for j in range(committed)]
        own = rows.index(row)
        if is_tree:
            assert work.ancestors is not None
            bits = np.unpackbits(work.ancestors[row].view(np.uint8), bitorder="little")
            tail = [r for t, r in enumerate(rows) if bits[t]]
        else:
            tail = rows[: own + 1]
        found = keys + step.slots[tail].tolist()
    return found


@pytest.mark.parametrize("tree_by_bits", [False, True])
@pytest.mark.parametrize("rows_per_item", [1, 4, 64])
@pytest.mark.parametrize("trees", [False, True])
def test_a_row_sees_the_committed_text_and_its_own_line(trees: bool, rows_per_item: int, tree_by_bits: bool) -> None:
    pages, step, parents, parts = example(trees)
    work = cut(step, PAGE, rows_per_item, parents, tree_by_bits)
    assert work.items[:, 4].max() <= rows_per_item
    assert work.items[:, 4].sum() == len(step.input_ids)
    row = 0
    for s, start, ids in parts:
        own = parents[row : row + len(ids)]
        slots = pages.slots(s, start, start + len(ids))
        for i in range(len(ids)):
            expected = pages.slots(s, 0, start).tolist() + slots[lineage(own, i)].tolist()
            assert seen_slots(step, work, row + i) == expected
        row += len(ids)


def test_parents_that_are_chains_make_no_tree() -> None:
    _, step, parents, _ = example(trees=False)
    with_parents, without = cut(step, PAGE, 4, parents, tree_by_bits=True), cut(step, PAGE, 4)
    assert with_parents.ancestors is None
    assert np.array_equal(with_parents.items, without.items)


def test_a_bad_tree_is_refused() -> None:
    _, step, parents, _ = example(trees=False)
    with pytest.raises(BadTree):
        cut(step, PAGE, 4, parents + 1)


def test_the_tail_is_never_read_through_the_page_table() -> None:
    """So a tree's rows may lie in any slots, and a page that the step begins needs no place in the table."""
    pages = Pages(6, PAGE, 1)
    assert cut(pages.step([(0, PAGE, np.arange(3, dtype=np.int32))]), PAGE, 4).table.shape == (1, 1)
    assert cut(pages.step([(0, 0, np.arange(3, dtype=np.int32))]), PAGE, 4).table.shape == (1, 0)


def test_a_filled_bucket_holds_the_step_and_padding_that_writes_to_the_trash() -> None:
    _, step, parents, _ = example(trees=True)
    work = cut(step, PAGE, 4, parents)
    shape = Shape(num_rows=32, num_items=32, num_tail=128, num_sequences=32, num_pages=16)
    assert shape.holds(Shape.of(work, len(step.input_ids)))
    tensors = StepTensors(shape, "cpu")
    for _ in range(2):  # the second fill must not see the first one's rests
        tensors.fill(step, work, split_keys=512, trash_slot=999)
    n, m = len(step.input_ids), len(work.items)
    assert tensors.slots[:n].tolist() == step.slots.tolist() and set(tensors.slots[n:].tolist()) == {999}
    items = tensors.items.view(32, NUM_FIELDS)
    assert np.array_equal(items[:m].numpy(), work.items)
    padding = items[m : m + 32 - n]
    assert padding[:, 4:6].eq(1).all() and items[m + 32 - n :].eq(0).all()
    rows = tensors.tail_rows[padding[:, 2]].tolist()
    assert rows == list(range(n, 32))
    assert tensors.tail_slots.tolist() == tensors.slots[tensors.tail_rows.long()].tolist()


def test_a_bucket_that_lacks_room_for_its_padding_does_not_hold_the_step() -> None:
    shape = Shape(num_rows=4, num_items=4, num_tail=16, num_sequences=4, num_pages=4)
    assert shape.holds(Shape(2, 2, 14, 1, 4))
    assert not shape.holds(Shape(2, 2, 15, 1, 4))
    assert not shape.holds(Shape(2, 3, 14, 1, 4))
    assert not shape.holds(Shape(2, 2, 14, 1, 5))
    assert not shape.holds(Shape(2, 2, 14, 1, 4, num_words=1))

"""A packed step says the same as its parts, row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engine.packing import FEW_PARTS, FEW_ROWS, Part, pack
from actors.engine.step import StepInput


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), count=st.integers(1, 12), page=st.sampled_from([1, 4, 16, 64]),
    most=st.sampled_from([1, 5, FEW_ROWS, 70]),
)
def test_every_row_has_its_token_its_position_and_its_slot(seed: int, count: int, page: int, most: int) -> None:
    """On each of the ways to pack: few short chains, a row of each of many, anything."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(count):
        start, size = int(rng.integers(0, 200)), int(rng.integers(1, most + 1))
        num_pages = -(-(start + size) // page) + int(rng.integers(0, 2))  # one may be reserved ahead
        pages = rng.permutation(1000)[:num_pages].astype(np.int32)
        parts.append(Part(rng.integers(0, 99, size).astype(np.int32), start, pages, int(rng.integers(0, size + 1))))
    step = pack(parts, page)
    row, logit = 0, 0
    for s, part in enumerate(parts):
        assert (step.cu_query[s], step.kv_len[s]) == (row, part.start + len(part.ids))
        assert step.pages[step.cu_pages[s] : step.cu_pages[s + 1]].tolist() == part.pages.tolist()
        for offset, token in enumerate(part.ids.tolist()):
            position = part.start + offset
            assert step.input_ids[row] == token
            assert step.positions[row] == position
            assert step.slots[row] == part.pages[position // page] * page + position % page
            if offset >= len(part.ids) - part.num_logits:
                assert step.logit_rows[logit] == row
                logit += 1
            row += 1
    assert (step.cu_query[-1], len(step.input_ids), len(step.logit_rows)) == (row, row, logit)
    arrays = {name: value for name in StepInput.__slots__ if isinstance(value := getattr(step, name), np.ndarray)}
    assert all(array.dtype == (np.float16 if name == "features" else np.int32) for name, array in arrays.items())


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (FEW_PARTS + 1, 1), (1, FEW_ROWS + 1)])
def test_copies_and_moves_are_those_that_were_asked_for_and_copies_order_free(count: int, rows: int) -> None:
    parts = [Part(np.zeros(rows, np.int32), 0, np.zeros(8, np.int32), 1) for _ in range(count)]
    assert pack(parts, 4).copies.shape == pack(parts, 4).moves.shape == (0, 2)
    assert pack(parts, 4, [(1, 2), (2, 3)]).copies.tolist() == [[1, 2], [1, 3]]
    moves = [np.array([[1, 2]], np.int32), np.array([[2, 3], [3, 4]], np.int32)]
    assert pack(parts, 4, moves=moves).moves.tolist() == [[1, 2], [2, 3], [3, 4]]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 6), page=st.sampled_from([1, 4, 16]))
def test_given_features_belong_to_the_slots_of_their_positions_and_survive_packing(
    seed: int, count: int, page: int
) -> None:
    rng = np.random.default_rng(seed)
    parts, wanted = [], {}
    for s in range(count):
        start, size = int(rng.integers(1, 50)), int(rng.integers(1, 20))
        pages = (100 * s + rng.permutation(100)[: -(-(start + size) // page)]).astype(np.int32)
        ids = rng.integers(0, 99, size).astype(np.int32)
        given = None
        if rng.random() < 0.7:
            first = int(rng.integers(start - 1, start + size))
            rows = rng.standard_normal((int(rng.integers(1, start + size - first + 1)), 6)).astype(np.float16)
            given = first, rows
            for place, row in enumerate(rows, start=first):
                wanted[int(pages[place // page]) * page + place % page] = row
        parts.append(Part(ids, start, pages, 1, given=given))
    step = pack(parts, page)
    again = StepInput.unpack(step.pack())
    for one in (step, again):
        assert dict(zip(one.feature_slots.tolist(), one.features.tolist(), strict=True)) == {
            slot: row.tolist() for slot, row in wanted.items()
        }
    for name in StepInput.__slots__:
        assert np.array_equal(getattr(step, name), getattr(again, name))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), page=st.sampled_from([1, 4, 16]))
def test_the_slot_before_a_row_is_that_of_its_parent(seed: int, page: int) -> None:
    rng = np.random.default_rng(seed)
    parts = []
    for s in range(3):
        start, size = int(rng.integers(0, 40)), int(rng.integers(1, 12))
        pages = (100 * s + rng.permutation(100)[: -(-(start + size) // page)]).astype(np.int32)
        parents = None
        if rng.random() < 0.5:
            parents = np.array([int(rng.integers(-1, row)) for row in range(size)], np.int32)
        parts.append(Part(np.zeros(size, np.int32), start, pages, 1, parents))
    step = pack(parts, page)
    before = iter(step.before(page).tolist())
    for part in parts:
        for parent in (np.arange(-1, len(part.ids) - 1) if part.parents is None else part.parents).tolist():
            place = part.start + parent  # -1: the last one before the rows
            assert next(before) == (-1 if place < 0 else int(part.pages[place // page]) * page + place % page)

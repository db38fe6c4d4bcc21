"""A packed step says the same as its parts, row by row."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engine.packing import Part, pack
from actors.engine.step import StepInput


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 12), page=st.sampled_from([1, 4, 16, 64]))
def test_every_row_has_its_token_its_position_and_its_slot(seed: int, count: int, page: int) -> None:
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(count):
        start, size = int(rng.integers(0, 200)), int(rng.integers(1, 70))
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
    assert all(getattr(step, name).dtype == np.int32 for name in StepInput.__slots__)


def test_copies_are_made_order_free() -> None:
    part = Part(np.zeros(1, np.int32), 0, np.zeros(1, np.int32), 1)
    assert pack([part], 4).copies.shape == (0, 2)
    assert pack([part], 4, [(1, 2), (2, 3)]).copies.tolist() == [[1, 2], [1, 3]]

"""Rows of a step: one scan tells all of them their best id, and a bad row spoils no other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from actors.sampling.rows import LogitRows, concat
from actors.sampling.validate import BadLogits


def test_every_part_knows_its_own_rows() -> None:
    logits = torch.randn(9, 100, generator=torch.Generator().manual_seed(0))
    rows = LogitRows(logits)
    part = rows.part(2, 7).part(1, 4)
    assert (len(rows), len(part), part.vocab_size) == (9, 3, 100)
    for index in range(3):
        np.testing.assert_array_equal(part.row(index), logits[3 + index].numpy())
        assert part.best(index) == int(logits[3 + index].argmax())
        assert part.top(index) == float(logits[3 + index].max())
    copied = concat([part, rows.part(0, 1)])
    assert [copied.best(i) for i in range(4)] == [part.best(0), part.best(1), part.best(2), rows.best(0)]


def test_a_copy_outlives_its_step() -> None:
    logits = torch.zeros(2, 4)
    logits[:, 2] = 1.0
    kept = concat([LogitRows(logits)])
    logits.zero_()
    assert kept.row(1).tolist() == [0.0, 0.0, 1.0, 0.0]


def test_ties_go_to_the_smallest_id() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, [700, 300, 999]] = 1.0
    assert LogitRows(logits).best(0) == 300


@pytest.mark.parametrize("bad", [[math.nan, 0.0, 9.0], [math.inf, 0.0, 1.0], [-math.inf] * 3])
def test_a_bad_row_raises_when_it_is_looked_at_and_only_then(bad: list[float]) -> None:
    rows = LogitRows(torch.tensor([[0.0, 2.0, 1.0], bad]))
    assert rows.best(0) == 1
    for look in (rows.best, rows.top, rows.row):
        with pytest.raises(BadLogits):
            look(1)


def test_masked_entries_are_fine() -> None:
    assert LogitRows(torch.tensor([[-math.inf, -3.0]])).best(0) == 1


def test_a_single_row_without_its_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="rows, vocabulary"):
        LogitRows(torch.zeros(5))

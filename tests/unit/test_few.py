"""Few ids and many are compared alike."""

from __future__ import annotations

import numpy as np
import pytest

from actors.engine.sequences import _num_common
from actors.few import FEW, within


@pytest.mark.parametrize("length", [0, 1, FEW, FEW + 1])
def test_ids_are_within_a_vocabulary_if_every_one_of_them_is(length: int) -> None:
    ids = np.arange(length, dtype=np.int32)
    assert within(ids, length)
    for place in range(length):
        for foreign in (-1, length):
            wrong = ids.copy()
            wrong[place] = foreign
            assert not within(wrong, length)


@pytest.mark.parametrize("length", [0, 1, FEW, FEW + 1])
def test_a_common_prefix_ends_at_the_first_difference(length: int) -> None:
    ids = np.arange(length, dtype=np.int32)
    assert _num_common(ids, np.append(ids, [7])) == length
    for place in range(length):
        other = ids.copy()
        other[place:] += 1
        assert _num_common(ids, other) == place

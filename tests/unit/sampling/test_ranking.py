"""Partial selection: equal to a full stable sort, ties and rounding included."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.sampling.ranking import contenders, integer_masses, mass_scale, nucleus, top_ids

pytestmark = pytest.mark.exactness

Row = np.ndarray


def sorted_ids(row: Row) -> Row:
    """Best first, ties by index: the definition."""
    return np.array(sorted(range(len(row)), key=lambda i: (-row[i], i)), np.int64)


def nucleus_by_sort(logs: Row, top_p: float) -> list[int]:
    """The definition: walk the sorted row, and stop where the sum of what was passed reaches the target.

    Exact integers throughout, so no order of summation is preferred.
    """
    weights = np.exp(logs)
    total = float(weights.sum(dtype=np.float64))
    scale = mass_scale(total)
    masses = [int(mass) for mass in integer_masses(weights, scale)]
    target = top_p * total * scale
    kept: list[int] = []
    passed = 0
    for index in sorted_ids(logs).tolist():
        if kept and not passed < target:
            break
        if kept and logs[index] == -math.inf:
            break
        kept.append(index)
        passed += masses[index]
    return sorted(kept)


def rows() -> st.SearchStrategy[Row]:
    """Random rows of many shapes: wide and flat, with ties (quantised) and masked entries."""

    def build(seed: int, size: int, scale: float, step: float, masked: float) -> Row:
        rng = np.random.default_rng(seed)
        row = (rng.standard_normal(size) * scale).astype(np.float32)
        if step:
            row = (np.round(row / step) * step).astype(np.float32)
        row[rng.random(size) < masked] = -np.inf
        row[rng.integers(size)] = np.float32(scale)
        return (row - row.max()).astype(np.float32)

    return st.builds(
        build, st.integers(0, 2**32 - 1), st.integers(1, 6000), st.sampled_from([0.0, 0.01, 1.0, 4.0, 30.0]),
        st.sampled_from([0.0, 0.25, 2.0]), st.sampled_from([0.0, 0.0, 0.5, 0.99]),
    )


@settings(max_examples=250, deadline=None)
@given(row=rows(), count=st.integers(0, 7000))
def test_the_best_ids_are_those_of_a_full_sort(row: Row, count: int) -> None:
    assert top_ids(row, count).tolist() == sorted_ids(row)[:count].tolist()


@settings(max_examples=250, deadline=None)
@given(row=rows(), count=st.integers(1, 3000))
def test_contenders_hold_the_best_with_all_ties_of_the_last(row: Row, count: int) -> None:
    found = set(contenders(row, count).tolist())
    best = sorted_ids(row)[:count]
    last = row[best[-1]]
    assert found >= {i for i in best.tolist() if row[i] > -np.inf}
    assert found >= set(np.flatnonzero((row == last) & (row > -np.inf)).tolist())


@settings(max_examples=400, deadline=None)
@given(row=rows(), top_p=st.floats(0.0, 1.0, exclude_max=True) | st.sampled_from([0.5, 0.9, 0.95, 0.999, 1 - 2**-53]))
def test_a_nucleus_is_that_of_a_full_sort(row: Row, top_p: float) -> None:
    got = nucleus(row, top_p)
    assert got.tolist() == nucleus_by_sort(row, top_p)
    assert len(got) >= 1


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 5.0])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.9999])
def test_a_nucleus_of_a_real_vocabulary_is_that_of_a_full_sort(scale: float, top_p: float) -> None:
    row = (np.random.default_rng(1).standard_normal(49152) * scale).astype(np.float32)
    row -= row.max()
    got = nucleus(row, top_p)
    assert got.tolist() == nucleus_by_sort(row, top_p)
    # Rounding to integers moves the sum by no more than a float64 running sum would.
    probs = np.sort(np.exp(row.astype(np.float64)))[::-1] / np.exp(row.astype(np.float64)).sum()
    assert abs(len(got) - int((probs.cumsum() - probs < top_p).sum())) <= 1


@pytest.mark.parametrize("place", [0, 1, 255, 256, 4999])
def test_a_cut_exactly_at_a_boundary_keeps_no_token_more(place: int) -> None:
    """With equal weights the sum meets the target exactly; one token more would be one too many."""
    size = 5000
    row = np.zeros(size, np.float32)
    assert nucleus(row, (place + 1) / 8192 * (8192 / size)).tolist() == nucleus_by_sort(
        row, (place + 1) / 8192 * (8192 / size)
    )
    even = np.zeros(4096, np.float32)
    assert nucleus(even, 0.25).tolist() == list(range(1024))


def test_masses_add_up_exactly_in_any_order() -> None:
    rng = np.random.default_rng(0)
    for scale in (0.0, 1.0, 10.0):
        logs = (rng.standard_normal(50_000) * scale).astype(np.float32)
        weights = np.exp(logs - logs.max())
        masses = integer_masses(weights, mass_scale(float(weights.sum(dtype=np.float64))))
        exact = sum(int(mass) for mass in masses)
        assert exact < 2**53
        for order in (np.arange(50_000), rng.permutation(50_000), np.argsort(masses)):
            assert int(masses[order].cumsum()[-1]) == exact
            assert int(masses[order].sum()) == exact
        halves = itertools.accumulate(np.bincount(np.arange(50_000) % 7, masses))
        assert int(list(halves)[-1]) == exact


@pytest.mark.parametrize("count", [1, 2, 8, 64])
@pytest.mark.parametrize("num_above", [0, 1, 2, 7, 40])
def test_a_flat_row_is_ranked_like_any_other(count: int, num_above: int) -> None:
    """Ties without end: an emulated model's row has two words that stand out, and thousands that do not."""
    rng = np.random.default_rng(num_above)
    row = np.zeros(30_000, np.float32)
    row[rng.choice(len(row), num_above, replace=False)] = rng.integers(1, 4, num_above)
    row[rng.choice(len(row), 900, replace=False)] = -np.inf
    assert top_ids(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()

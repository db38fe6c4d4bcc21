"""Statistics of measurements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.bench import stats

TIMES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30)


@given(TIMES)
def test_quartiles_enclose_the_median_and_lie_among_the_values(values: list[float]) -> None:
    found = stats.spread(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert found.count == len(values)


@given(TIMES, st.floats(0.1, 10))
def test_drift_that_hits_both_sides_of_a_pair_cancels(values: list[float], factor: float) -> None:
    slower = [value * factor for value in values]
    found = stats.paired_ratio(slower, values)
    assert found.median == pytest.approx(factor)
    assert found.low == pytest.approx(found.high)
    assert found.of_minima == pytest.approx(factor)


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="not pairs"):
        stats.paired_ratio([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="not positive"):
        stats.paired_ratio([1.0], [0.0])
    with pytest.raises(ValueError, match="nothing was measured"):
        stats.spread([])


def test_percentiles_interpolate_and_know_nothing_of_nothing() -> None:
    assert stats.percentile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert stats.percentile([0.0, 10.0], 0.99) == pytest.approx(9.9)
    assert stats.percentile([], 0.5) is None
    with pytest.raises(ValueError, match="share"):
        stats.percentile([1.0], 99)


def test_steady_rate_counts_only_while_all_streams_run() -> None:
    early = [float(t) for t in range(11)]  # one event a second
    late = [5.0 + t for t in range(11)]
    assert stats.steady_rate([early]) == pytest.approx(1.0)
    assert stats.steady_rate([early, late]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="never ran together"):
        stats.steady_rate([[0.0, 1.0], [2.0, 3.0]])
    with pytest.raises(ValueError, match="two events"):
        stats.steady_rate([[1.0]])


@given(st.lists(st.tuples(st.floats(0.01, 5), st.integers(1, 8)), min_size=2, max_size=20))
def test_tokens_of_a_chunk_share_its_gap_and_no_time_is_lost(chunks: list[tuple[float, int]]) -> None:
    times = np.cumsum([gap for gap, _ in chunks]).tolist()
    counts = [count for _, count in chunks]
    gaps = stats.per_token_gaps(times, counts)
    assert len(gaps) == sum(counts[1:])
    assert math.fsum(gaps) == pytest.approx(times[-1] - times[0])


def test_one_chunk_has_no_gaps() -> None:
    assert stats.per_token_gaps([1.0], [5]) == []


def test_slope_is_deaf_to_a_few_outliers() -> None:
    times = [float(t) for t in range(50)]
    values = [3.0 + 0.5 * t for t in times]
    values[7] = values[30] = 1e6
    assert stats.slope(times, values) == pytest.approx(0.5)
    assert stats.growth(times, values) == pytest.approx(24.5)
    with pytest.raises(ValueError, match="two different times"):
        stats.slope([1.0, 1.0], [2.0, 3.0])


@given(st.lists(st.integers(), min_size=1, max_size=300), st.integers(2, 100))
def test_thinning_keeps_order_and_ends(values: list[int], limit: int) -> None:
    kept = stats.thinned(values, limit)
    assert len(kept) == min(limit, len(values))
    assert (kept[0], kept[-1]) == (values[0], values[-1])
    places = iter(values)
    assert all(value in places for value in kept)  # a subsequence


def test_perplexity_of_a_fair_choice_is_the_number_of_choices() -> None:
    assert stats.perplexity([math.log(8)] * 5) == pytest.approx(8)
    with pytest.raises(ValueError, match="at least one"):
        stats.perplexity([])

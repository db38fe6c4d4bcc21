"""What a load's outcomes amount to, on outcomes made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from cluster.bench.serve.arrivals import poisson
from cluster.bench.serve.asks import LEFT, OK, Ask, Figures, Outcome
from cluster.bench.serve.figures import LatencyTarget, steady_window, summarise

TARGET = LatencyTarget(first_token_ms=500, token_interval_ms=100)


def outcome(
    due_s: float, first_s: float, interval_s: float, chunks: tuple[int, ...] = (2, 2, 2), status: str = OK
) -> Outcome:
    times = tuple(due_s + first_s + i * interval_s for i in range(len(chunks)))
    figures = Figures(
        num_prompt_tokens=5, num_completion_tokens=sum(chunks), num_rounds=len(chunks), num_drafted=4, num_accepted=3,
        control_s=0.002 * len(chunks), control_round_p50_s=0.002,
    )
    return Outcome(
        ask=Ask("x", token_ids=(1,)), due_s=due_s, end_s=times[-1] if times else due_s, status=status, times_s=times,
        counts=chunks, figures=figures if status == OK else None,
    )


def test_latencies_count_from_when_a_request_was_due_and_per_token() -> None:
    found = summarise([outcome(10, 0.3, 0.1)], 9.9, 11, TARGET)
    assert found.first_token_ms_p50 == pytest.approx(300)
    assert found.token_interval_ms_p50 == pytest.approx(50)  # two tokens share each gap
    assert found.chunk_interval_ms_p50 == pytest.approx(100)
    assert (found.mat, found.acceptance) == (2.0, 0.75)
    assert found.control_ms_per_round == pytest.approx(2.0)
    assert found.control_ms_per_round_p50 == pytest.approx(2.0)


def test_goodput_counts_finished_requests_that_keep_both_bounds() -> None:
    outcomes = [
        outcome(0, 0.4, 0.1), outcome(0, 0.6, 0.1), outcome(0, 0.1, 0.5), outcome(0, 0.1, 0.1, status=LEFT),
        outcome(0, 0.2, 0.0, chunks=(3,)),  # one chunk has no interval to judge
    ]
    found = summarise(outcomes, -0.1, 1.9, TARGET)
    assert found.requests_per_s == pytest.approx(4 / 2)
    assert found.goodput_requests_per_s == pytest.approx(2 / 2)
    assert found.statuses == {OK: 4, LEFT: 1}


def test_rates_count_only_what_arrives_in_the_window() -> None:
    found = summarise([outcome(0, 0.5, 1.0, chunks=(1, 2, 4))], 1.0, 2.0, TARGET)  # at 0.5, 1.5 and 2.5
    assert found.tokens_per_s == 2.0
    assert found.requests_per_s == 0.0


def test_a_load_in_which_nothing_finished_has_no_latencies() -> None:
    found = summarise([outcome(0, 0, 0, chunks=(), status="RESOURCE_EXHAUSTED")], 0, 1, TARGET)
    assert found.first_token_ms_p50 is found.token_interval_ms_p99 is found.mat is found.acceptance is None
    assert found.goodput_requests_per_s == 0.0
    with pytest.raises(ValueError, match="measure for longer"):
        summarise([], 1, 1, TARGET)


def test_the_steady_window_leaves_out_the_ramp_and_ends_with_the_last_event() -> None:
    assert steady_window([outcome(0, 50, 0)], 0, 20) == (2.0, 20)
    assert steady_window([outcome(0, 1, 1)], 0, 20) == (2.0, 3.0)


def test_poisson_arrivals_come_in_order_at_the_mean_rate() -> None:
    times = poisson(20, 200, np.random.default_rng(0))
    assert times == sorted(times)
    assert times[0] >= 0 and times[-1] < 200
    assert len(times) == pytest.approx(4000, rel=0.1)
    gaps = np.diff(times)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # as of an exponential law
    with pytest.raises(ValueError, match="positive"):
        poisson(0, 1, np.random.default_rng(0))

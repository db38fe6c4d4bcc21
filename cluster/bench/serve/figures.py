"""What a load's outcomes amount to: latencies, rates, goodput, acceptance. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.bench.serve.asks import OK, Outcome
from cluster.bench.stats import per_token_gaps, percentile


@dataclass(frozen=True, slots=True)
class LatencyTarget:
    """A request is good when it keeps both bounds."""

    first_token_ms: float
    token_interval_ms: float  # mean of the request, after its first chunk

    def met(self, outcome: Outcome) -> bool:
        """Whether a finished request kept the bounds (one chunk alone has no interval to judge)."""
        first, interval = outcome.first_token_s, outcome.token_interval_s
        return (
            outcome.status == OK and first is not None and 1e3 * first <= self.first_token_ms
            and (interval is None or 1e3 * interval <= self.token_interval_ms)
        )


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """One level of load. None: nothing to measure it by."""

    num_requests: int
    statuses: dict[str, int]
    window_s: float
    tokens_per_s: float
    requests_per_s: float  # finished
    goodput_requests_per_s: float
    first_token_ms_p50: float | None
    first_token_ms_p99: float | None
    token_interval_ms_p50: float | None  # inter-token latency
    token_interval_ms_p99: float | None
    chunk_interval_ms_p50: float | None  # between chunks, however many tokens they bring
    chunk_interval_ms_p99: float | None
    mat: float | None
    acceptance: float | None
    lease_ms_p50: float | None  # before a request's first round, until it holds replicas
    lease_ms_p99: float | None
    control_ms_per_round: float | None
    control_ms_per_round_p50: float | None  # median over requests of each one's median

    def as_json(self) -> dict[str, object]:
        """Plain JSON types."""
        return {
            name: round(value, 4) if isinstance(value := getattr(self, name), float) else value
            for name in self.__slots__
        }


def summarise(outcomes: Sequence[Outcome], begin_s: float, end_s: float, target: LatencyTarget) -> LoadFigures:
    """Figures of a load whose steady part was [begin_s, end_s].

    Rates count what arrived within it; latencies are those of all finished requests. Raises ValueError for an
    empty window.
    """
    window_s = end_s - begin_s
    if window_s <= 0:
        raise ValueError("the window is empty: measure for longer")
    done = [outcome for outcome in outcomes if outcome.status == OK]
    ended = [outcome for outcome in done if begin_s < outcome.end_s <= end_s]
    tokens = sum(
        count for outcome in outcomes for at, count in zip(outcome.times_s, outcome.counts, strict=True)
        if begin_s < at <= end_s
    )
    firsts = [1e3 * s for outcome in done if (s := outcome.first_token_s) is not None]
    intervals = [1e3 * gap for outcome in done for gap in per_token_gaps(outcome.times_s, outcome.counts)]
    chunks = [
        1e3 * (b - a) for outcome in done for a, b in zip(outcome.times_s, outcome.times_s[1:], strict=False)
    ]
    parts = [outcome.figures for outcome in done if outcome.figures is not None]
    leases = [1e3 * part.lease_s for part in parts]
    num_rounds = sum(part.num_rounds for part in parts)
    num_drafted = sum(part.num_drafted for part in parts)
    return LoadFigures(
        num_requests=len(outcomes),
        statuses=dict(Counter(outcome.status for outcome in outcomes)),
        window_s=window_s,
        tokens_per_s=tokens / window_s,
        requests_per_s=len(ended) / window_s,
        goodput_requests_per_s=sum(1 for outcome in ended if target.met(outcome)) / window_s,
        first_token_ms_p50=percentile(firsts, 0.5), first_token_ms_p99=percentile(firsts, 0.99),
        token_interval_ms_p50=percentile(intervals, 0.5), token_interval_ms_p99=percentile(intervals, 0.99),
        chunk_interval_ms_p50=percentile(chunks, 0.5), chunk_interval_ms_p99=percentile(chunks, 0.99),
        mat=sum(part.num_completion_tokens for part in parts) / num_rounds if num_rounds else None,
        acceptance=sum(part.num_accepted for part in parts) / num_drafted if num_drafted else None,
        lease_ms_p50=percentile(leases, 0.5), lease_ms_p99=percentile(leases, 0.99),
        control_ms_per_round=1e3 * sum(part.control_s for part in parts) / num_rounds if num_rounds else None,
        control_ms_per_round_p50=percentile([1e3 * part.control_round_p50_s for part in parts], 0.5),
    )


def steady_window(
    outcomes: Sequence[Outcome], begin_s: float, duration_s: float, ramp: float = 0.1
) -> tuple[float, float]:
    """The part of a load that began at `begin_s` and sent requests for `duration_s`, without its first `ramp` share.

    Ends with the last event if that came earlier.
    """
    last_s = max((outcome.end_s for outcome in outcomes), default=begin_s)
    return begin_s + ramp * duration_s, min(begin_s + duration_s, last_s)

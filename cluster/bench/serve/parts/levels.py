"""Levels of load: closed loops of some streams, and open loops at some rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cluster.bench.serve.arrivals import poisson
from cluster.bench.serve.asks import Outcome
from cluster.bench.serve.bench import MANY, LoadBench, begin
from cluster.bench.serve.client_process import Closed, Open
from cluster.bench.serve.figures import steady_window, summarise

SHARES = (0.5, 0.9)  # of the closed loops' best rate, where no rates are given


def closed(bench: LoadBench) -> None:
    """Streams that each send their next request when the last one has ended."""
    findings, duration_s = bench.findings, bench.settings.duration_s
    for streams in bench.settings.streams:
        before = _forward_s(bench)
        name = f"{streams} stream{'s' if streams > 1 else ''}"
        load = Closed(bench.asks(), streams, duration_s)
        outcomes = bench.put(name, load, duration_s)
        first_s = begin(outcomes)
        figures = summarise(outcomes, *steady_window(outcomes, first_s, duration_s), bench.settings.target)
        wall_s = max(outcome.end_s for outcome in outcomes) - first_s
        busy = {tier: round((now - before[tier]) / wall_s, 4) for tier, now in _forward_s(bench).items()}
        bench.add_level(name, figures, loop="closed", streams=streams, forward_share=busy)
        if streams == 1:
            control = figures.control_ms_per_round_p50
            if control is None or not _reports_control(outcomes):
                findings.skip("control_ms_per_round_p50", "the service does not report the time of its control plane")
            else:
                findings.add("control_ms_per_round_p50", control)
        if streams == MANY:
            control = figures.control_ms_per_round
            if control is None or not _reports_control(outcomes):
                findings.skip(
                    "control_ms_per_sequence_round", "the service does not report the time of its control plane"
                )
            else:
                # A round's work outside the models is done for all sequences together: its share is a stream's cost.
                findings.add("control_ms_per_sequence_round", control / streams)
    missing = {1: "control_ms_per_round_p50", MANY: "control_ms_per_sequence_round"}
    for streams, figure in missing.items():
        if streams not in bench.settings.streams:
            findings.skip(figure, f"needs {streams} in --streams")


def open_loops(bench: LoadBench) -> None:
    """Requests that come by chance at a mean rate, whatever became of those before them."""
    settings = bench.settings
    rates = settings.rates
    if rates is None:
        if bench.best_requests_per_s == 0.0:
            bench.findings.skip("open loop", "no closed loop has measured a rate: give --rates")
            return
        rates = tuple(share * bench.best_requests_per_s for share in SHARES)
    rng = np.random.default_rng(settings.random_seed)
    asks = bench.asks()
    for rate in rates:
        times = poisson(rate, settings.duration_s, rng) or [0.0]
        load = Open([replace(asks[i % len(asks)], at_s=at) for i, at in enumerate(times)])
        name = f"{rate:.2g} requests/s"
        outcomes = bench.put(name, load, settings.duration_s)
        first_s = begin(outcomes)
        # What came late in the window ends after it: goodput is judged over all that came, until the last one ended.
        last_s = max(outcome.end_s for outcome in outcomes)
        figures = summarise(outcomes, first_s - 1e-9, last_s, settings.target)
        bench.add_level(name, figures, loop="open", rate_requests_per_s=round(rate, 4))
        bench.findings.details["goodput_target_ms"] = {
            "first_token": settings.target.first_token_ms, "token_interval": settings.target.token_interval_ms,
        }


def _forward_s(bench: LoadBench) -> dict[str, float]:
    """Seconds that each tier has spent in forward passes; empty when its pools cannot be read."""
    if bench.service.pools is None:
        return {}
    return {pool.name: pool.stats.extra.get("forward_s", 0.0) for pool in bench.service.pools()}


def _reports_control(outcomes: list[Outcome]) -> bool:
    """An older service leaves the fields at 0, which no real round takes."""
    return any(outcome.figures is not None and outcome.figures.control_s > 0 for outcome in outcomes)

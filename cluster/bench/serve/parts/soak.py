"""The soak: capacity first, then mixed load above it, with an eye on memory; at the end all must be free."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from cluster.bench.serve.arrivals import poisson
from cluster.bench.serve.asks import OK
from cluster.bench.serve.bench import MANY, LoadBench, LoadFailed, begin
from cluster.bench.serve.client import longest_prompt
from cluster.bench.serve.client_process import Closed, Open
from cluster.bench.serve.figures import steady_window, summarise
from cluster.bench.serve.memory import Sampler
from cluster.bench.serve.soak import LONG_TOKENS, MOST_TOKENS, Verdict, mixed_asks, verdicts
from cluster.bench.texts import fixed_text

CAPACITY_SHARE = 0.2  # of the soak's time goes to measuring capacity, within these bounds
CAPACITY_S = (10.0, 90.0)
CAPACITY_RAMP = 0.5  # of that time, not counted: prompts are met for the first time, and answers end in waves
WARMUP_SHARE = 1 / 3  # of the soak, before memory is judged: caches fill, allocators grow to their peak
MIN_JUDGED_S = 120.0  # of a soak whose memory can be judged at all
FREED_S = 20.0  # after the last request, pools hold nothing within this time


def soak(bench: LoadBench, duration_s: float, overload: float) -> list[Verdict]:
    """Mixed load at `overload` times the measured capacity for `duration_s`. Raises `LoadFailed`."""
    settings, findings, service = bench.settings, bench.findings, bench.service
    rng = np.random.default_rng(settings.random_seed)
    long_chars = bench.excerpt_chars(min(LONG_TOKENS, longest_prompt(service.address, MOST_TOKENS) * 2 // 3))
    capacity = _capacity(bench, duration_s, long_chars, rng)
    times = poisson(overload * capacity, duration_s, rng) or [0.0]
    asks = mixed_asks(len(times), settings.prompts, fixed_text(), long_chars, rng)
    load = Open([replace(ask, at_s=at) for ask, at in zip(asks, times, strict=True)])
    with ExitStack() as stack:
        sampler = stack.enter_context(Sampler(service.processes)) if service.processes is not None else None
        outcomes = bench.put(f"soak at {overload * capacity:.2g} requests/s", load, duration_s)
    idle, idle_why = _idle(bench)
    flat, memory_why = _flatness(bench, sampler, duration_s)
    config = service.config
    found = verdicts(
        len(load.asks), outcomes, bits_promised=config is not None and config.target.device == "cpu",
        flat=flat, memory_why=memory_why, idle=idle, idle_why=idle_why,
    )
    figures = summarise(outcomes, begin(outcomes) - 1e-9, max(outcome.end_s for outcome in outcomes), settings.target)
    bench.add_level("soak", figures, loop="open", rate_requests_per_s=round(overload * capacity, 4))
    statuses = Counter(outcome.status for outcome in outcomes)
    findings.details["statuses"] = dict(statuses)
    findings.details["statuses_by_kind"] = {
        name: dict(Counter(outcome.status for outcome in outcomes if outcome.ask.name == name))
        for name in sorted({ask.name for ask in asks})
    }
    findings.details["verdicts"] = {
        verdict.claim: {"holds": verdict.holds, "why": verdict.why} for verdict in found
    }
    findings.add("soak_s", duration_s)
    findings.add("soak_overload", overload)
    findings.add("soak_capacity_requests_per_s", capacity)
    findings.add("soak_requests", len(load.asks))
    findings.add("soak_finished", statuses[OK])
    findings.add("soak_refused_share", statuses["RESOURCE_EXHAUSTED"] / len(load.asks))
    return found


def _capacity(bench: LoadBench, duration_s: float, long_chars: int, rng: np.random.Generator) -> float:
    """Requests per second that end when as many clients as may run at once never pause."""
    config = bench.service.config
    streams = config.limits.max_concurrent_requests if config is not None else min(MANY, max(bench.settings.streams))
    measure_s = min(max(CAPACITY_S[0], CAPACITY_SHARE * duration_s), CAPACITY_S[1])
    load = Closed(mixed_asks(256, bench.settings.prompts, fixed_text(), long_chars, rng), streams, measure_s)
    outcomes = bench.put("capacity", load, measure_s)
    begin_s, end_s = steady_window(outcomes, begin(outcomes), measure_s, CAPACITY_RAMP)
    # Whatever ended freed its place, however it ended; a refusal took none.
    ended = sum(1 for o in outcomes if begin_s < o.end_s <= end_s and o.status != "RESOURCE_EXHAUSTED")
    if ended == 0:
        raise LoadFailed(f"no request ended within {measure_s:g} s: the service is too slow for a soak this short")
    return ended / (end_s - begin_s)


def _idle(bench: LoadBench) -> tuple[bool | None, str]:
    if bench.service.pools is None:
        return None, "the pools of a service that somebody else started cannot be read"
    end = time.monotonic() + FREED_S
    while True:
        held = [pool for pool in bench.service.pools() if not pool.idle]
        if not held:
            return True, "no lease, no sequence, no page is held in any pool"
        if time.monotonic() > end:
            states = "; ".join(
                f"{pool.name}: {pool.num_leases} leases, {pool.stats.num_sequences} sequences, "
                f"{pool.stats.num_free_pages} of {pool.stats.num_pages} pages free"
                for pool in held
            )
            return False, f"{FREED_S:g} s after the last request: {states}"
        time.sleep(0.5)


def _flatness(bench: LoadBench, sampler: Sampler | None, duration_s: float) -> tuple[bool | None, str]:
    if sampler is None:
        return None, "the processes of a service that somebody else started cannot be told"
    after_s = duration_s * WARMUP_SHARE
    series = [each for each in sampler.series if each.mib]
    bench.findings.details["memory"] = [each.as_json(after_s) for each in series]
    if duration_s < MIN_JUDGED_S:
        return None, f"too short to tell growth from warming up: soak for at least {MIN_JUDGED_S:g} s"
    judged = [(each, each.flat(after_s), each.grown_mib(after_s)) for each in series if each.judged]
    known = [(each, flat, grown) for each, flat, grown in judged if flat is not None and grown is not None]
    if not known:
        return None, "too few samples: soak for longer"
    bench.findings.add("soak_memory_growth_mib", sum(grown for _, _, grown in known))
    bench.findings.add("soak_memory_mib", sum(each.mib[-1] for each, _, _ in known))
    worst, _, most = max(known, key=lambda item: item[2])
    why = f"after {after_s:.0f} s, {worst.name} grew most: by {most:.1f} MiB to {worst.mib[-1]:.0f} MiB"
    return all(flat for _, flat, _ in known), why

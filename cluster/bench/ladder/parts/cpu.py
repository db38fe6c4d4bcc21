"""The real pair on CPUs: overlapped rounds against the best synchronous ones, draft and target on a core each."""

from __future__ import annotations

import os

from cluster.bench.ladder.bench import REAL, LadderBench, LadderFailed, Row
from cluster.bench.ladder.configs import REAL_PAIR, real_pair
from cluster.bench.ladder.measured import Measured, Variant, speedup, speedups
from cluster.bench.ladder.through import PLAIN, learn_texts, take_turns
from cluster.bench.serve.service import Service

OVERLAP = {"branches": 1, "guesses": 1, "tokens": 6}
SYNC_LOOKAHEADS = (4, 8)
OVERLAP_LOOKAHEADS = (6,)  # after a miss


def cpu(bench: LadderBench) -> None:
    """`cpu_overlap_vs_sync`, greedy, texts identical. Raises `LadderFailed` where no process can be kept on a core."""
    settings = bench.settings
    cores = two_cores()
    configs = {"cpu_sync": real_pair(cores), "cpu_overlap": real_pair(cores, {"overlap": OVERLAP})}
    with bench.services(**configs) as services:
        sync, ahead = services["cpu_sync"], services["cpu_overlap"]
        texts = learn_texts(bench, sync, REAL_PAIR, settings.cpu_prompts, settings.cpu_tokens)
        asked: list[tuple[Service, Variant, int]] = [(sync, PLAIN, settings.cpu_tokens)]
        asked += [(sync, Variant(f"sync, k = {k}", k), settings.cpu_tokens) for k in SYNC_LOOKAHEADS]
        asked += [(ahead, Variant(f"overlap, k = {k}", k), settings.cpu_tokens) for k in OVERLAP_LOOKAHEADS]
        plain, *found = take_turns(bench, texts, asked, settings.cpu_prompts)
    for measured in found:
        bench.rows.append(Row("cpu", REAL, measured.variant.name, speedup(plain, measured), None, measured))
    in_turns = _fastest(found[: len(SYNC_LOOKAHEADS)])
    overlapped = _fastest(found[len(SYNC_LOOKAHEADS) :])
    bench.add(
        "cpu_overlap_vs_sync", speedup(in_turns, overlapped), REAL, speedups(in_turns, overlapped)
    )
    bench.add("cpu_sync_speedup", speedup(plain, in_turns), REAL)
    bench.add("cpu_overlap_speedup", speedup(plain, overlapped), REAL)


def two_cores() -> tuple[int, int]:
    """Of those that this process may use. Raises `LadderFailed`."""
    if not hasattr(os, "sched_getaffinity"):
        raise LadderFailed("this platform cannot keep a process on a core")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise LadderFailed("draft and target need a core each, and there is only one")
    return cores[0], cores[1]


def _fastest(found: list[Measured]) -> Measured:
    return min(found, key=lambda measured: measured.seconds_per_token)

"""The metrics of a pool's replica, from the counters of its engine."""

from __future__ import annotations

from actors.messages import ReplicaStats
from cluster.telemetry import metrics as m
from cluster.telemetry.metrics import Sample

_EXTRA = {
    "num_active_calls": m.ACTIVE_CALLS, "num_waiting_calls": m.QUEUE_DEPTH, "num_preemptions": m.PREEMPTIONS,
    "num_refused_calls": m.REFUSED_CALLS, "forward_s": m.FORWARD_SECONDS,
}


def replica_samples(stats: ReplicaStats, num_leases: int, max_leases: int) -> tuple[Sample, ...]:
    """A drafter without pages has no KV cache to use."""
    samples = [
        Sample(m.SEQUENCES, stats.num_sequences), Sample(m.LEASES, num_leases), Sample(m.MAX_LEASES, max_leases),
        Sample(m.STEPS, stats.num_steps), Sample(m.ROWS, stats.num_rows),
    ]
    if stats.num_pages:
        samples.append(Sample(m.KV_USAGE, 1.0 - stats.num_free_pages / stats.num_pages))
        samples.append(Sample(m.KV_CACHED, stats.num_cached_pages / stats.num_pages))
    samples += [Sample(metric, stats.extra[key]) for key, metric in _EXTRA.items() if key in stats.extra]
    return tuple(samples)

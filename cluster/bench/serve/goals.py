"""The figures of `bench serve`, and what this project asks of them on a 2-core machine with the built-in model."""

from __future__ import annotations

from cluster.bench.report import Goal

GOALS = {
    "control_ms_per_round_p50": Goal(at_most=3.0),
    "control_ms_per_sequence_round": Goal(at_most=0.5),
    "batch_efficiency_32": Goal(at_least=0.85),
    "second_turn_prefill_share_target": Goal(at_most=0.05),
    "second_turn_prefill_share_draft": Goal(at_most=0.05),
}

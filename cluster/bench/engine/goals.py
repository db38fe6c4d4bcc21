"""The figures of `bench engine`, and what this project asks of them on a 2-core machine with the built-in model."""

from __future__ import annotations

from cluster.bench.report import Goal

GOALS = {
    "ar_vs_transformers_fp32": Goal(at_least=1.3),
    "ar_int8_vs_transformers_fp32": Goal(at_least=3.0),
    "verify5_vs_1_fp32": Goal(at_most=1.5),
    "verify5_vs_1_int8": Goal(at_most=1.5),
    "verify5_int8_vs_fp32": Goal(at_most=0.45),
    "batch16_throughput_vs_1": Goal(at_least=5.0),
    "spec_vs_transformers_assisted": Goal(at_least=2.0),
    "tp2_vs_tp1": Goal(at_least=0.95),
    "perplexity_int8_vs_fp32": Goal(at_most=1.01),
    "perplexity_int8_kv_vs_fp32": Goal(at_most=1.01),
}

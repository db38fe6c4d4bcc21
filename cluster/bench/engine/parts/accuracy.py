"""Perplexity of the fixed text by kind of weights and of KV cache, over that of fp32."""

from __future__ import annotations

from cluster.bench.engine.bench import Bench
from cluster.bench.engine.models import Kind, KindRefused
from cluster.bench.engine.perplexity import text_perplexity


def perplexities(bench: Bench) -> None:
    """Perplexity of the fixed text by kind, and with an int8 KV cache, over that of fp32."""
    findings, settings = bench.findings, bench.settings
    if settings.random_weights:
        findings.skip("perplexity", "weights are random")
        return
    int8_kv = Kind("fp32", "float32", kv_dtype="int8")
    bench.watcher.section("perplexity", len(bench.kinds) + 1)
    found: dict[str, float] = {}
    for kind in (*bench.kinds, int8_kv):
        try:
            runner = bench.models.runner("target", kind)
        except KindRefused as error:
            findings.skip("perplexity_int8_kv_vs_fp32", str(error))
        else:
            found[kind.label] = text_perplexity(runner, bench.text_ids, settings.target.page_tokens)
        bench.watcher.run_done()
    bench.models.release("target", int8_kv)
    findings.details["perplexity"] = {label: round(value, 5) for label, value in found.items()}
    findings.details["perplexity_tokens"] = len(bench.text_ids)
    if "fp32" not in found:
        findings.skip("perplexity_vs_fp32", "fp32 was not measured")
        return
    for kind in bench.quantised():
        findings.add(f"perplexity_{kind.weights}_vs_fp32", found[kind.label] / found["fp32"])
    if int8_kv.label in found:
        findings.add("perplexity_int8_kv_vs_fp32", found[int8_kv.label] / found["fp32"])

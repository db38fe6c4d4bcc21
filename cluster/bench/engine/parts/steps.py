"""Time of one forward pass by kind of weights, context and rows, against its two floors."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from cluster.bench.engine.bench import Bench
from cluster.bench.engine.feed import TextFeed
from cluster.bench.engine.floors import floors, model_shape
from cluster.bench.engine.models import Kind
from cluster.bench.stats import paired_ratio, spread

VERIFY_ROWS = 5  # k = 4 and the token before them
PREFILL_TOKENS = 256
MACHINE = "machine"  # measured round by round as well: the floors are to be those of the same minutes


def steps(bench: Bench) -> None:
    """Time of one pass by kind, context and rows, against both floors."""
    settings, findings = bench.settings, bench.findings
    longest = max(*settings.contexts, PREFILL_TOKENS) + max(settings.rows)
    variants: dict[tuple[Kind, int, int], Callable[[], float]] = {}
    for kind in bench.kinds:
        feed = TextFeed(bench.models.runner("target", kind), bench.text_ids, settings.target.page_tokens)
        feed.prefill(longest)
        for context, rows in itertools.product(settings.contexts, settings.rows):
            variants[kind, context, rows] = _pass(feed, context, rows, rows, settings.inner)
        variants[kind, 0, PREFILL_TOKENS] = _pass(feed, 0, PREFILL_TOKENS, 1, 1)
    names = {f"{kind.label}/{context}/{rows}": (kind, context, rows) for kind, context, rows in variants}
    measured = bench.run("steps", {
        **{name: variants[key] for name, key in names.items()}, MACHINE: bench.meter.sample,
    })
    del measured[MACHINE]
    seconds = {names[name]: values for name, values in measured.items()}
    _report_steps(bench, seconds)
    context = settings.contexts[0]
    if VERIFY_ROWS in settings.rows:
        for weights in dict.fromkeys(kind.weights for kind in bench.kinds):
            candidates = [kind for kind in bench.kinds if kind.weights == weights]
            bench.chosen[weights] = min(
                candidates, key=lambda kind: spread(seconds[kind, context, VERIFY_ROWS]).median
            )
    for weights, kind in bench.chosen.items():
        five = seconds[kind, context, VERIFY_ROWS]
        if 1 in settings.rows:
            findings.add(f"verify{VERIFY_ROWS}_vs_1_{weights}", paired_ratio(five, seconds[kind, context, 1]))
        reference = bench.chosen.get("fp32")
        if reference is not None and weights != "fp32":
            findings.add(
                f"verify{VERIFY_ROWS}_{weights}_vs_fp32",
                paired_ratio(five, seconds[reference, context, VERIFY_ROWS]),
            )


def _pass(feed: TextFeed, context: int, rows: int, num_logits: int, inner: int) -> Callable[[], float]:
    def measure() -> float:
        seconds = []
        for _ in range(inner):
            started = time.perf_counter()
            feed.run(context, context + rows, num_logits)  # its logits are on the CPU: the device has finished
            seconds.append(time.perf_counter() - started)
        return spread(seconds).median

    return measure


def _report_steps(bench: Bench, seconds: dict[tuple[Kind, int, int], list[float]]) -> None:
    rates, shape = bench.meter.rates, model_shape(bench.models.config("target"))
    rows_found: list[dict[str, object]] = []
    fractions: dict[str, float] = {}
    for (kind, context, rows), values in seconds.items():
        floor = floors(shape, rates, kind.weights, kind.kv_bytes, context + rows // 2, rows)
        found = spread(values).scaled(1e3)
        rows_found.append({
            "kind": kind.label, "context": context, "rows": rows, "ms": round(found.median, 3),
            "ms_min": round(1e3 * min(values), 3), "ms_q1": round(found.low, 3), "ms_q3": round(found.high, 3),
            "bandwidth_floor_ms": round(1e3 * floor.bandwidth_s, 3),
            "operations_floor_ms": round(1e3 * floor.operations_s, 3),
        })
        if rows == 1 and context == bench.settings.contexts[0]:
            fractions[kind.label] = round(1e3 * floor.bandwidth_s / found.median, 4)
    bench.findings.details["steps"] = rows_found
    bench.findings.details["fraction_of_bandwidth_floor"] = fractions

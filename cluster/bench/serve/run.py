"""`bench serve` from settings to findings."""

from __future__ import annotations

from collections.abc import Callable

from cluster.bench.report import Findings
from cluster.bench.serve.bench import LoadBench, LoadFailed, ServeSettings
from cluster.bench.serve.parts import batch, chat, levels
from cluster.bench.serve.parts.soak import soak
from cluster.bench.serve.service import Service
from cluster.bench.serve.soak import Verdict
from cluster.bench.watch import Watcher

PARTS: dict[str, Callable[[LoadBench], None]] = {
    "closed": levels.closed, "open": levels.open_loops, "batch": batch.batch, "chat": chat.chat,
}


def run(settings: ServeSettings, service: Service, watcher: Watcher) -> Findings:
    """Measure all parts that `settings` names, in the order of `PARTS`."""
    bench = _bench(settings, service, watcher)
    for name, part in PARTS.items():
        if name not in settings.sections:
            continue
        try:
            part(bench)
        except LoadFailed as error:
            bench.findings.skip(name, str(error))
    return bench.findings


def run_soak(
    settings: ServeSettings, service: Service, watcher: Watcher, duration_s: float, overload: float
) -> tuple[Findings, list[Verdict]]:
    """The soak alone. Raises `LoadFailed`."""
    bench = _bench(settings, service, watcher)
    found = soak(bench, duration_s, overload)
    return bench.findings, found


def _bench(settings: ServeSettings, service: Service, watcher: Watcher) -> LoadBench:
    findings = Findings()
    config = service.config
    findings.details["service"] = {
        "address": service.name, "model": config.model_name if config is not None else None,
        "tiers": [f"{tier.name}: {tier.label} {tier.weights}" for tier in config.tiers] if config is not None else None,
        "lookahead": settings.lookahead, "speculation": settings.speculation, "max_tokens": settings.max_tokens,
        "duration_s": settings.duration_s, "num_prompts": len(settings.prompts),
    }
    return LoadBench(settings, service, findings, watcher)

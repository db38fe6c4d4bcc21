"""`bench ladder` from settings to findings."""

from __future__ import annotations

from collections.abc import Callable

from cluster.bench.ladder.bench import LadderBench, LadderFailed, LadderSettings
from cluster.bench.ladder.goals import FIGURES
from cluster.bench.ladder.parts import blocks, control, cpu, overlap, plan, sync, tiers, trees
from cluster.bench.ladder.stage import Stage
from cluster.bench.report import Findings
from cluster.bench.watch import Watcher

PARTS: dict[str, Callable[[LadderBench], None]] = {
    "sync": sync.sync, "overlap": overlap.overlap, "trees": trees.trees, "tiers": tiers.tiers,
    "control": control.control, "cpu": cpu.cpu, "blocks": blocks.blocks, "plan": plan.plan,
}


def run(settings: LadderSettings, stage: Stage, watcher: Watcher) -> LadderBench:
    """Measure all sections that `settings` names. Raises `TextsDiffer`: then no figure counts."""
    bench = LadderBench(settings, stage, Findings(), watcher)
    for name, part in PARTS.items():
        if name not in settings.sections:
            continue
        try:
            part(bench)
        except LadderFailed as error:
            bench.findings.skip(FIGURES[name], str(error))
    details = bench.findings.details
    details["rows"] = [row.as_json() for row in bench.rows]
    details["measured_on"] = bench.realms
    details["emulated_figures"] = [name for name, realm in bench.realms.items() if realm.startswith("EMULATED")]
    return bench

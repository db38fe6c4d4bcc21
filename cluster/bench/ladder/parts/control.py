"""The controller in simulated time: near the best fixed lookahead, never below plain, soon back after a spike."""

from __future__ import annotations

from cluster.bench.ladder.bench import SIMULATED, LadderBench, Row
from cluster.simulation.control import measure


def control(bench: LadderBench) -> None:
    """`controller_vs_best_fixed` and `controller_vs_plain` at their worst points, and `recovery_rounds`."""
    found = measure(workers=bench.settings.workers, watcher=bench.watcher)
    for point in found.points:
        name = f"{point.streams} stream{'s' if point.streams > 1 else ''} at {point.agreement:g}"
        best = point.fixed[point.best] / point.fixed[0]
        bench.rows.append(Row("control", SIMULATED, name, point.vs_plain, best))
    bench.findings.details["control"] = found.as_json()
    bench.realms["control"] = SIMULATED
    bench.add("controller_vs_best_fixed", found.vs_best_fixed, SIMULATED)
    bench.add("controller_vs_plain", found.vs_plain, SIMULATED)
    bench.add("recovery_rounds", float(found.recovery_rounds), SIMULATED)

"""How many drafters eight targets are worth, in simulated time."""

from __future__ import annotations

from cluster.bench.ladder.bench import SIMULATED, LadderBench, Row
from cluster.simulation.plan import plan as simulated_plan
from cluster.simulation.preset import SIZES, large_pair


def plan(bench: LadderBench) -> None:
    """The knee of throughput over draft pool sizes, and how long finding it took."""
    found = simulated_plan(large_pair(), SIZES, bench.settings.workers, bench.watcher)
    for point in found.points:
        bench.rows.append(Row("plan", SIMULATED, f"{point.replicas} drafters for 8 targets", point.speedup, None))
    bench.findings.details["plan"] = found.as_json()
    bench.realms["plan"] = SIMULATED
    bench.add("plan_knee", float(found.knee), SIMULATED)
    bench.add("plan_wall_s", found.wall_s, SIMULATED)

"""A plan finds the knee of its curve, is shown as what it is, and comes out alike in one process or several."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cluster.simulation.knee import bend, smallest_within
from cluster.simulation.load import Closed
from cluster.simulation.plan import Plan, plan
from cluster.simulation.scenario import Scenario
from cluster.simulation.show import draw, render
from tests.unit.simulation.scenarios import pair


def scenario() -> Scenario:
    scenario = pair(Closed(96, 48), 4, targets=4)
    return replace(scenario, tiers=(replace(scenario.tiers[0], max_sequences=12), scenario.tiers[1]))


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(scenario(), (1, 2, 4, 8), workers=1)


def test_the_knee_is_the_smallest_pool_near_the_best() -> None:
    assert smallest_within((1, 2, 4, 8), (10, 18, 19.5, 20), 0.05) == 4
    assert smallest_within((1, 2, 4, 8), (10, 18, 19.5, 20), 0.1) == 2
    assert smallest_within((1, 2), (20, 10), 0.05) == 1


def test_the_bend_is_the_point_furthest_above_the_chord() -> None:
    assert bend((1, 2, 4, 8), (10, 18, 19.5, 20)) == 2
    assert bend((1, 2, 3, 4), (1, 2, 3, 4)) is None
    assert bend((1, 2, 3), (5, 5, 5)) is None
    assert bend((1, 2), (1, 9)) is None


def test_more_drafters_help_until_the_knee(planned: Plan) -> None:
    rates = {point.replicas: point.figures.tokens_per_s for point in planned.points}
    assert rates[planned.knee] >= 0.95 * max(rates.values())
    assert all(rate < 0.95 * max(rates.values()) for size, rate in rates.items() if size < planned.knee)
    assert planned.points[0].figures.degraded_rounds > planned.points[-1].figures.degraded_rounds
    assert planned.points[-1].speedup > 1.3


def test_several_processes_find_what_one_finds(planned: Plan) -> None:
    other = plan(scenario(), (8, 4, 2, 1), workers=2)
    assert other.points == planned.points
    assert other.plain == planned.plain


def test_whatever_is_shown_says_that_it_is_emulated(planned: Plan, tmp_path: Path) -> None:
    found = json.loads(json.dumps(planned.as_json()))
    assert found["emulated"] is True and "emulated" in found["label"]
    assert [point["draft_replicas"] for point in found["points"]] == [1, 2, 4, 8]
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(render(planned))
    shown = console.export_text()
    assert "emulated" in shown and "knee" in shown and "speedup" in shown
    pytest.importorskip("matplotlib")
    draw(planned, tmp_path / "plan.svg")
    assert "emulated" in (tmp_path / "plan.svg").read_text() or (tmp_path / "plan.svg").stat().st_size > 10_000


def test_plans_without_a_draft_pool_say_so() -> None:
    with pytest.raises(ValueError, match="at least two tiers"):
        plan(replace(scenario(), tiers=scenario().tiers[1:]), (1,))
    with pytest.raises(ValueError, match="different sizes"):
        plan(scenario(), (2, 2))

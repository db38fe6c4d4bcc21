"""Findings, goals and what is shown of them."""

from __future__ import annotations

import io
import json

from rich.console import Console

from cluster.bench.report import Findings, Goal, figures_table, skipped_lines
from cluster.bench.stats import paired_ratio


def shown(findings: Findings, goals: dict[str, Goal], *, judged: bool) -> str:
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(figures_table("t", findings, goals, judged=judged))
    return console.export_text()


def test_json_holds_every_expected_figure_and_null_for_a_missing_one() -> None:
    findings = Findings()
    findings.add("a", paired_ratio([2.0, 4.0], [1.0, 1.0]))
    findings.skip(["b", "c"], "no such kernel")
    found = json.loads(json.dumps(findings.as_json(["a", "b"])))
    assert found["a"] == 3.0
    assert found["b"] is None
    assert found["skipped"] == {"b": "no such kernel", "c": "no such kernel"}
    assert found["spread"]["a"]["count"] == 2


def test_a_measured_figure_is_never_called_skipped() -> None:
    findings = Findings()
    findings.skip("a", "first it failed")
    findings.add("a", 1.0)
    findings.skip("a", "too late")
    assert findings.skipped == {}


def test_reasons_are_told_once_with_everything_they_explain() -> None:
    findings = Findings()
    findings.skip(["a", "b"], "one")
    findings.skip("c", "two")
    assert skipped_lines(findings) == ["not measured: a, b: one", "not measured: c: two"]


def test_goals_are_bounds_on_either_side_and_shown_only_where_they_were_set() -> None:
    assert Goal(at_least=2).met(2.0) and not Goal(at_least=2).met(1.9)
    assert Goal(at_most=0.5).met(0.5) and not Goal(at_most=0.5).met(0.6)
    findings = Findings()
    findings.add("fast", 3.0)
    findings.add("slow", 3.0)
    goals = {"fast": Goal(at_least=2), "slow": Goal(at_most=2)}
    judged = shown(findings, goals, judged=True)
    assert "yes" in judged and "NO" in judged and "≥ 2" in judged
    assert "NO" not in shown(findings, goals, judged=False)

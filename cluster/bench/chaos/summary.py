"""The chaos table: what all runs of a kind come to (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from cluster.bench.chaos.faults import Fault
from cluster.bench.chaos.run import Run
from cluster.bench.report import Findings
from cluster.bench.stats import percentile

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """All runs of one kind."""

    fault: Fault
    runs: tuple[Run, ...]

    def as_json(self) -> dict[str, Any]:
        """One row of the table."""
        judged = [run for run in self.runs if run.passed is not None]
        recovered = [run.recovery_s for run in self.runs if run.recovery_s is not None]
        gaps = [run.judgement.longest_gap_s for run in judged]
        return {
            "fault": self.fault.name, "what": self.fault.what, "promise": self.fault.promise.value,
            "runs": len(self.runs), "kept": sum(run.passed is True for run in judged),
            "broken": sum(run.passed is False for run in judged), "inconclusive": len(self.runs) - len(judged),
            "streams": sum(run.judgement.num_streams for run in self.runs),
            "under_way": sum(run.judgement.num_under_way for run in self.runs),
            "cut": sum(run.judgement.num_cut for run in self.runs),
            "wrong_tokens": sum(run.judgement.num_wrong_tokens for run in self.runs),
            "recovery_p50_s": _rounded(percentile(recovered, 0.5)),
            "recovery_p95_s": _rounded(percentile(recovered, 0.95)),
            "whole_p50_s": _rounded(percentile([run.whole_s for run in judged], 0.5)),
            "gap_p50_s": _rounded(percentile(gaps, 0.5)), "gap_max_s": _rounded(max(gaps, default=None)),
            "recoveries_s": [round(value, 2) for value in recovered], "notes": notes(self.runs),
        }


def rows(runs: Sequence[Run]) -> list[Row]:
    """One row of each kind, by name."""
    names = sorted({run.blow.fault.name for run in runs})
    own = {name: tuple(run for run in runs if run.blow.fault.name == name) for name in names}
    return [Row(own[name][0].blow.fault, own[name]) for name in names]


def remark(run: Run) -> str:
    """What is to be said of a run as soon as it is over; empty: it kept everything."""
    lines = notes([run], most=2)
    return f"{run.blow.fault.name} {run.blow.number}: {'; '.join(lines)}" if lines else ""


def notes(runs: Sequence[Run], most: int = 5) -> list[str]:
    """What broke, or why runs prove nothing; each once."""
    lines = [line for run in runs for line in (*run.judgement.broken, *run.faults, run.why_not) if line]
    return list(dict.fromkeys(lines))[:most]


def add_figures(findings: Findings, service: str, runs: Sequence[Run]) -> None:
    """The table as figures and details; several services add theirs."""
    found: Rows = [*findings.details.get("chaos", []), *(  # type: ignore[misc]  # what this function put there
        {"service": service, **row.as_json()} for row in rows(runs)
    )]
    findings.details["chaos"] = found
    for name in ("runs", "broken", "inconclusive", "streams", "wrong_tokens"):
        findings.add(f"chaos_{name}", float(sum(row[name] for row in found)))
    findings.add("chaos_kinds", float(len({row["fault"] for row in found})))
    times = [value for row in found for value in row["recoveries_s"]]
    for share in (50, 95):
        if (value := percentile(times, share / 100)) is not None:
            findings.add(f"chaos_recovery_p{share}_s", value)


def table(found: Rows) -> Table:
    """Rows as people read them."""
    out = Table(title="faults under load", box=box.SIMPLE_HEAD)
    out.add_column("service")
    out.add_column("fault", no_wrap=True)
    out.add_column("streams are")
    for header in ("runs", "kept", "streams", "wrong tokens", "recovery p50", "p95, s", "longest gap, s"):
        out.add_column(header, justify="right")
    for row in found:
        color = "red" if row["broken"] else "green"
        kept = f"[{color}]{row['kept']}[/]" + (f" [yellow](+{row['inconclusive']} ?)[/]" if row["inconclusive"] else "")
        out.add_row(
            escape(row["service"]), escape(row["fault"]), row["promise"], str(row["runs"]), kept, str(row["streams"]),
            str(row["wrong_tokens"]), _cell(row["recovery_p50_s"]), _cell(row["recovery_p95_s"]),
            _cell(row["gap_max_s"]),
        )
    return out


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)

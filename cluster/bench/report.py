"""What a bench found: named figures with their spread, what was left out and why, and the tables and JSON of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.markup import escape
from rich.table import Table

from cluster.bench.stats import Spread


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound that a figure should keep; one of the two is set."""

    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        """Whether `value` keeps the bound."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"


@dataclass
class Findings:
    """Collects results. Whatever was asked for ends up in `figures` or, with its reason, in `skipped`."""

    figures: dict[str, float] = field(default_factory=dict)
    spreads: dict[str, Spread] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    details: dict[str, object] = field(default_factory=dict)

    def add(self, name: str, value: float | Spread) -> None:
        """Record a figure; of a spread, the median is the figure."""
        if isinstance(value, Spread):
            self.spreads[name] = value
            value = value.median
        self.figures[name] = value
        self.skipped.pop(name, None)

    def skip(self, names: str | Sequence[str], reason: str) -> None:
        """Record why figures (or whole parts) are missing, unless they have been measured after all."""
        for name in [names] if isinstance(names, str) else names:
            if name not in self.figures:
                self.skipped[name] = reason

    def as_json(self, expected: Sequence[str] = ()) -> dict[str, object]:
        """One flat object of figures, null for an `expected` one that is missing, and the details beside them."""
        missing = {name: None for name in expected if name not in self.figures}
        return {
            **{name: _rounded(value) for name, value in self.figures.items()},
            **missing,
            "spread": {name: spread.as_json() for name, spread in self.spreads.items()},
            "skipped": dict(self.skipped),
            **self.details,
        }


def figures_table(title: str, findings: Findings, goals: Mapping[str, Goal], *, judged: bool) -> Table:
    """The figures with quartiles; goals and verdicts only if they were set for what was measured (`judged`)."""
    table = Table(title=escape(title), box=box.SIMPLE_HEAD)
    table.add_column("figure", no_wrap=True)
    for header in ("median", "quartiles", "of minima"):
        table.add_column(header, justify="right")
    if judged:
        table.add_column("goal", justify="right")
        table.add_column("met")
    for name, value in findings.figures.items():
        spread = findings.spreads.get(name)
        cells = [
            escape(name), f"{value:.4g}", f"{spread.low:.4g} … {spread.high:.4g}" if spread else "",
            f"{spread.of_minima:.4g}" if spread and spread.of_minima is not None else "",
        ]
        if judged:
            goal = goals.get(name)
            cells += ["", ""] if goal is None else [str(goal), "[green]yes[/]" if goal.met(value) else "[red]NO[/]"]
        table.add_row(*cells)
    return table


def skipped_lines(findings: Findings) -> list[str]:
    """One line per reason, with everything that it explains."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in findings.skipped.items():
        by_reason.setdefault(reason, []).append(name)
    return [f"not measured: {', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")

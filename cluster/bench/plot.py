"""Plots of what a bench found, written to a file. Needs matplotlib (the extra `plots`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.bench.report import Findings, Goal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")
WIDTH, HEIGHT = 12.0, 4.8  # inches


class CannotPlot(ValueError):
    """A plot cannot be written; one line that names the fix."""


def check(path: Path) -> None:
    """Before anything is measured: raises `CannotPlot` if the plot could not be written afterwards."""
    if path.suffix.lower() not in FORMATS:
        raise CannotPlot(f"--plot {path}: give a file name that ends in {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise CannotPlot(f"--plot {path}: there is no directory {path.parent}; make it first")
    if find_spec("matplotlib") is None:
        raise CannotPlot("--plot needs matplotlib: pip install 'outrider[plots]'")


def engine(findings: Findings, goals: Mapping[str, Goal], path: Path) -> None:
    """Step times over rows with their bandwidth floors; ratios with their goals."""
    with _figure(path, 2) as (left, right):
        _steps(left, findings)
        _ratios(right, findings, goals)


def serve(findings: Findings, path: Path) -> None:
    """Rates and latencies over load."""
    with _figure(path, 2) as (left, right):
        levels: Any = findings.details.get("levels", [])
        names = [level["name"] for level in levels]
        _bars(left, names, {
            "tokens/s": [level["tokens_per_s"] for level in levels],
        }, "tokens/s")
        _bars(right, names, {
            "first token p50": [level["first_token_ms_p50"] for level in levels],
            "first token p99": [level["first_token_ms_p99"] for level in levels],
            "between tokens p50": [level["token_interval_ms_p50"] for level in levels],
            "between tokens p99": [level["token_interval_ms_p99"] for level in levels],
        }, "ms")
        right.set_yscale("log")


def soak(findings: Findings, path: Path) -> None:
    """Memory of each process over time; what became of the requests."""
    with _figure(path, 2) as (left, right):
        memory: Any = findings.details.get("memory", [])
        for process in memory:
            points = process["samples"]
            style = {"label": process["name"]} if process["judged"] else {"color": "lightgrey"}
            left.plot([t for t, _ in points], [mib for _, mib in points], linewidth=1, **style)
        left.set_xlabel("s since the start of the load")
        left.set_ylabel("resident memory, MiB")
        left.set_ylim(bottom=0)
        if memory:
            left.legend(fontsize=7)
        statuses: Any = findings.details.get("statuses", {})
        right.barh(list(statuses), list(statuses.values()))
        right.set_xlabel("requests")


def chaos(findings: Findings, path: Path) -> None:
    """Recovery times of each kind of fault; its longest gaps."""
    rows: Any = findings.details.get("chaos", [])
    names = [row["fault"] for row in rows][::-1]
    with _figure(path, 2) as (left, right):
        for place, row in enumerate(rows[::-1]):
            left.plot(row["recoveries_s"], [place] * len(row["recoveries_s"]), "o", markersize=3, alpha=0.6)
        left.set_yticks(range(len(names)), names, fontsize=6)
        left.set_xscale("symlog", linthresh=1.0)
        left.set_xlabel("recovery after a fault, s (each run)")
        right.barh(names, [row["gap_max_s"] or 0.0 for row in rows[::-1]], color="#8aa4c8")
        right.tick_params(axis="y", labelsize=6)
        right.set_xlabel("longest gap in a stream that was kept, s")


def chaos_soak(findings: Findings, path: Path) -> None:
    """Memory and open files of each kind of process in the pauses of a soak."""
    readings: Any = findings.details.get("readings", [])
    with _figure(path, 2) as (left, right):
        for name in sorted({name for reading in readings for name in reading["kinds"]}):
            points = [(reading["at_s"], *reading["kinds"][name]) for reading in readings if name in reading["kinds"]]
            left.plot([point[0] for point in points], [point[2] for point in points], linewidth=1, label=name)
            right.plot([point[0] for point in points], [point[3] for point in points], linewidth=1, label=name)
        for axes, unit in ((left, "resident memory of a process, MiB"), (right, "open files of a process")):
            axes.set_xlabel("s since the start")
            axes.set_ylabel(unit)
            axes.set_ylim(bottom=0)
        if readings:
            left.legend(fontsize=5)


def _steps(axes: Axes, findings: Findings) -> None:
    steps: Any = findings.details.get("steps", [])
    context = min((step["context"] for step in steps if step["context"]), default=0)
    chosen = [step for step in steps if step["context"] == context]
    for kind in dict.fromkeys(step["kind"] for step in chosen):
        own = [step for step in chosen if step["kind"] == kind]
        points = sorted((step["rows"], step["ms"], step["bandwidth_floor_ms"]) for step in own)
        rows = [row for row, _, _ in points]
        (line,) = axes.plot(rows, [ms for _, ms, _ in points], marker="o", label=kind)
        axes.plot(rows, [floor for _, _, floor in points], linestyle=":", color=line.get_color())
    axes.set_xlabel(f"rows of one pass, after {context} tokens (dotted: bytes / bandwidth)")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    if chosen:
        axes.legend(fontsize=8)


def _ratios(axes: Axes, findings: Findings, goals: Mapping[str, Goal]) -> None:
    names = [name for name in findings.figures if "_vs_" in name][::-1]
    axes.barh(names, [findings.figures[name] for name in names], color="#8aa4c8")
    for height, name in enumerate(names):
        goal = goals.get(name)
        bound = None if goal is None else goal.at_least if goal.at_least is not None else goal.at_most
        if bound is not None:
            axes.plot([bound, bound], [height - 0.4, height + 0.4], color="black")
    axes.set_xlabel("ratio (black: goal)")
    axes.tick_params(axis="y", labelsize=7)


def _bars(axes: Axes, names: Sequence[str], series: Mapping[str, Sequence[float | None]], unit: str) -> None:
    width = 0.8 / max(1, len(series))
    for index, (label, values) in enumerate(series.items()):
        places = [place + (index - (len(series) - 1) / 2) * width for place in range(len(names))]
        axes.bar(places, [value or 0.0 for value in values], width=width, label=label)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axes.set_ylabel(unit)
    if len(series) > 1:
        axes.legend(fontsize=8)


class _figure:
    """Axes side by side, saved to `path` at the end of the block."""

    def __init__(self, path: Path, columns: int) -> None:
        from matplotlib.figure import Figure  # late: only plots need it

        self._path = path
        self._figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        self._axes = [self._figure.add_subplot(1, columns, column + 1) for column in range(columns)]

    def __enter__(self) -> list[Axes]:
        return self._axes

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._figure.savefig(self._path, dpi=130)

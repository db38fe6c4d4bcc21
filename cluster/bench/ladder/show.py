"""Tables and plot of `bench ladder`. Whatever comes from emulated devices says so."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table

from cluster.bench import plot
from cluster.bench.ladder.bench import EMULATED, REAL, SIMULATED, LadderBench, Row
from cluster.bench.ladder.goals import GOALS
from cluster.bench.report import Findings, figures_table

COLORS = {EMULATED: "#c8a07a", SIMULATED: "#b5b5b5", REAL: "#8aa4c8"}


def tables(bench: LadderBench) -> list[Table]:
    """The variants of each section, then the figures with their goals: emulated, simulated and real ones apart."""
    found = []
    for section in dict.fromkeys(row.section for row in bench.rows):
        found.append(section_table(section, [row for row in bench.rows if row.section == section]))
    for realm in (EMULATED, SIMULATED, REAL):
        figures = {name: value for name, value in bench.findings.figures.items() if bench.realms.get(name) == realm}
        if figures:
            own = Findings(figures, {name: bench.findings.spreads[name] for name in figures
                                     if name in bench.findings.spreads})
            found.append(figures_table(f"figures: {realm}", own, GOALS, judged=True))
    return found


def section_table(section: str, rows: list[Row]) -> Table:
    """What each variant of a section came to, theory beside it."""
    realms = ", ".join(dict.fromkeys(row.realm for row in rows))
    table = Table(title=escape(f"{section}: {realms}"), box=box.SIMPLE_HEAD)
    table.add_column("variant")
    for header in ("speedup", "theory", "MAT", "agreement", "hits", "target busy"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(escape(row.name), f"{row.speedup:.2f}", _number(row.theory, ".2f"), *_cells(row))
    return table


def draw(bench: LadderBench, path: Path) -> None:
    """Measured speedups beside theory, variant by variant. Raises `CannotPlot`."""
    plot.check(path)
    from matplotlib.figure import Figure  # late: only plots need it
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows = [row for row in bench.rows if row.speedup != 1.0 or row.theory != 1.0][::-1]
    figure = Figure(figsize=(plot.WIDTH, max(plot.HEIGHT, 0.28 * len(rows) + 1.5)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(range(len(rows)), [row.speedup for row in rows], color=[COLORS[row.realm] for row in rows])
    for height, row in enumerate(rows):
        if row.theory is not None:
            axes.plot([row.theory, row.theory], [height - 0.4, height + 0.4], color="black")
    axes.set_yticks(range(len(rows)), [f"{row.section} · {row.name}" for row in rows], fontsize=7)
    axes.set_xlabel("speedup")
    realms = [realm for realm in COLORS if any(row.realm == realm for row in rows)]
    marks = [Patch(color=COLORS[realm], label=realm) for realm in realms]
    axes.legend(handles=[*marks, Line2D([], [], color="black", label="theory")], fontsize=8)
    axes.set_title(f"outrider bench ladder ({'; '.join(realms)})", fontsize=9)
    figure.savefig(path, dpi=130)


def _cells(row: Row) -> list[str]:
    measured = row.measured
    if measured is None:
        return [""] * 4
    target = list(measured.busy.values())[-1:]
    return [
        f"{measured.mean_committed:.2f}", _number(measured.agreement, ".3f"), _number(measured.hit_rate, ".0%"),
        _number(target[0] if target else None, ".0%"),
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)

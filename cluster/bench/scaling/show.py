"""Table and plot of `bench scaling`."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table

from cluster.bench import plot
from cluster.bench.ladder.bench import EMULATED
from cluster.bench.report import figures_table
from cluster.bench.scaling.run import GOALS, ScalingBench, phase_rows
from cluster.bench.scaling.script import DRAFT, TARGET

COLORS = {DRAFT: "#c8a07a", TARGET: "#5a7ca8"}


def tables(bench: ScalingBench) -> list[Table]:
    """The phases, then the figures."""
    table = Table(title=f"load script: {EMULATED}", box=box.SIMPLE_HEAD)
    table.add_column("phase")
    for header in (
        "from, s", "lasted, s", "drafted", "plain", "drafts", "targets", "wanted", "requests", "failed",
        "without draft",
    ):
        table.add_column(header, justify="right", no_wrap=True)
    for row in phase_rows(bench):
        mark = "green" if row["as_wanted"] else "red"
        table.add_row(
            escape(str(row["name"])), f"{row['start_s']:.0f}", f"{row['lasted_s']:.0f}", str(row["drafted"]),
            str(row["plain"]),
            f"[{mark}]{row['drafts']}[/]", f"[{mark}]{row['targets']}[/]",
            f"{row['drafts_wanted']}, {row['targets_wanted']}", str(row["requests"]), str(row["failed"]),
            str(row["degraded_rounds"]),
        )
    return [table, figures_table(f"figures: {EMULATED}", bench.findings, GOALS, judged=True)]


def draw(bench: ScalingBench, path: Path) -> None:
    """Both pools over time, above the streams that asked. Raises `CannotPlot`."""
    plot.check(path)
    from matplotlib.figure import Figure  # late: only plots need it

    figure = Figure(figsize=(plot.WIDTH, 1.3 * plot.HEIGHT), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    times = [sample.at_s for sample in bench.trace.samples]
    for pool, color in COLORS.items():
        running = [sample.running[pool] for sample in bench.trace.samples]
        all_of_them = [n + sample.other[pool] for n, sample in zip(running, bench.trace.samples, strict=True)]
        upper.step(times, running, where="post", color=color, linewidth=2, label=f"{pool}s running")
        upper.step(times, all_of_them, where="post", color=color, linewidth=1, linestyle=":",
                   label="… with those that start or drain")
    upper.set_ylabel("replicas")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    starts = bench.starts()
    ends = [(start, end) for start, end in zip(starts, starts[1:], strict=False)]
    for (start, end), phase in zip(ends, bench.phases, strict=True):
        upper.axvline(start, color="lightgrey", linewidth=0.8, zorder=0)
        upper.text(start + 0.5, -0.42, phase.name, fontsize=8)
        lower.fill_between([start, end], phase.num_drafted, step="post", color=COLORS[DRAFT])
        lower.fill_between([start, end], phase.num_drafted, phase.num_drafted + phase.num_plain, step="post",
                           color=COLORS[TARGET])
    upper.set_ylim(bottom=-0.5)
    lower.set_ylabel("streams (blue: without drafts)")
    lower.set_xlabel("s")
    figures = bench.findings.figures
    upper.set_title(
        f"outrider bench scaling ({EMULATED}): {figures['requests']:g} requests, "
        f"{figures['failed_requests']:g} failed", fontsize=9,
    )
    figure.savefig(path, dpi=130)

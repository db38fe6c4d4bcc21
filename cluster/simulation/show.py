"""Tables and plots of a plan. All of them say that devices and time are not real."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table

from cluster.bench import plot
from cluster.simulation.outcome import LoadFigures
from cluster.simulation.plan import KNEE_SHARE, LABEL, Plan


def render(plan: Plan) -> Table:
    """One line per size of the draft pool, after that of the targets alone."""
    table = Table(title=f"draft pool sizes ({LABEL}; latencies p50 / p99)", box=box.SIMPLE_HEAD, caption=verdict(plan))
    for header in ("drafters", "tokens/s", "speedup", "per token, ms", "first token, s", "draft busy", "target busy",
                   "MAT", "degraded"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_row("none", *_cells(plan.plain, 1.0))
    for point in plan.points:
        style = "bold" if point.replicas == plan.knee else None
        table.add_row(str(point.replicas), *_cells(point.figures, point.speedup), style=style)
    return table


def verdict(plan: Plan) -> str:
    """One sentence on the knee."""
    bend = "the curve does not bend" if plan.bend is None else f"the curve bends most at {plan.bend}"
    return (
        f"knee: {plan.knee} draft replicas (the smallest pool within {KNEE_SHARE:.0%} of the best throughput); {bend}; "
        f"planned in {plan.wall_s:.1f} s"
    )


def draw(plan: Plan, path: Path) -> None:
    """Throughput and speedup, latencies, and utilisation over the size of the draft pool. Raises `CannotPlot`."""
    plot.check(path)
    sizes = [point.replicas for point in plan.points]
    figures = [point.figures for point in plan.points]
    from matplotlib.figure import Figure  # late: only plots need it

    figure = Figure(figsize=(plot.WIDTH, plot.HEIGHT), layout="constrained")
    rates, latencies, busy = (figure.add_subplot(1, 3, column + 1) for column in range(3))
    rates.plot(sizes, [f.tokens_per_s for f in figures], marker="o", label="speculative")
    rates.axhline(plan.plain.tokens_per_s, linestyle=":", color="grey", label="targets alone")
    rates.axvline(plan.knee, color="black", linewidth=1, label=f"knee: {plan.knee}")
    rates.set_ylabel("tokens/s")
    for name, style in (("p50", "-"), ("p99", "--")):
        for what, color in (("per_token", "C0"), ("first_token", "C1")):
            values = [1e3 * (getattr(f, f"{what}_s_{name}") or 0.0) for f in figures]
            latencies.plot(sizes, values, style, color=color, marker="o", label=f"{what.replace('_', ' ')} {name}")
    latencies.set_yscale("log")
    latencies.set_ylabel("ms")
    busy.plot(sizes, [f.utilisation[0] for f in figures], marker="o", label="draft pool")
    busy.plot(sizes, [f.utilisation[-1] for f in figures], marker="o", label="target pool")
    busy.plot(sizes, [f.degraded_share for f in figures], marker="x", color="C3", label="degraded rounds")
    busy.set_ylabel("share")
    for axes in (rates, busy):
        axes.set_ylim(bottom=0)
    for axes in (rates, latencies, busy):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_xlabel(f"draft replicas\n({LABEL})")
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=130)


def _cells(figures: LoadFigures, speedup: float) -> list[str]:
    speculative = len(figures.utilisation) > 1
    return [
        f"{figures.tokens_per_s:.0f}", f"{speedup:.2f}",
        _pair(figures.per_token_s_p50, figures.per_token_s_p99, 1e3, ".0f"),
        _pair(figures.first_token_s_p50, figures.first_token_s_p99, 1.0, ".2f"),
        f"{figures.utilisation[0]:.0%}" if speculative else "-", f"{figures.utilisation[-1]:.0%}",
        f"{figures.committed_per_round:.2f}", f"{figures.degraded_share:.1%}" if speculative else "-",
    ]


def _pair(low: float | None, high: float | None, scale: float, form: str) -> str:
    return "-" if low is None or high is None else f"{scale * low:{form}} / {scale * high:{form}}"

"""A plan as a table, a plot and plain JSON. All of them say that devices and time are not real."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from cluster.bench import plot
from cluster.planning.check import Checked
from cluster.planning.costs import Costs
from cluster.planning.search import Choice, Estimate, Load, cheapest, fastest
from cluster.simulation.plan import LABEL

SHOWN = 10  # settings in the table, the best ones


def table(costs: Costs, estimates: Sequence[Estimate], load: Load) -> Table:
    """The best settings, after the targets alone."""
    best = fastest(estimates)
    found = Table(title=f"{load.streams} streams, {load.targets} targets ({LABEL})", box=box.SIMPLE_HEAD,
                  caption=verdict(costs, estimates))
    found.add_column("setting (ms per token p50 / p99; busy: the targets; prices per million tokens)")
    for header in ("tokens/s", "speed-up", "ms/token", "busy", "MAT", "per 1M"):
        found.add_column(header, justify="right", no_wrap=True)
    plain, *others = estimates
    for estimate in [plain, *sorted(others, key=lambda each: -each.speedup)[:SHOWN]]:
        figures = estimate.figures
        gap, worst = figures.per_token_s_p50, figures.per_token_s_p99
        found.add_row(
            estimate.choice.name(costs), f"{figures.tokens_per_s:.1f}", f"{estimate.speedup:.2f}",
            "-" if gap is None or worst is None else f"{1e3 * gap:.0f} / {1e3 * worst:.0f}",
            f"{figures.utilisation[-1]:.0%}",
            f"{figures.committed_per_round:.2f}", "-" if estimate.cost is None else f"{estimate.cost:.2f}",
            style="bold" if estimate is best else None,
        )
    return found


def verdict(costs: Costs, estimates: Sequence[Estimate]) -> str:
    """One sentence on what to do."""
    best, least = fastest(estimates), cheapest(estimates)
    if not best.choice.tiers:
        return "no draft pays under this load: serve the target alone"
    text = f"take {best.choice.name(costs)}: {best.speedup:.2f} times as fast as the target alone"
    if least is not None and least is not best:
        text += f"; cheapest for a token: {least.choice.name(costs)} ({least.cost:.2f} per million)"
    return text


def checked_table(checked: Sequence[Checked]) -> Table:
    """Predicted beside measured."""
    found = Table(title="speed-up of one stream, predicted and measured on the service", box=box.SIMPLE_HEAD)
    found.add_column("setting")
    for header in ("predicted", "measured", "error"):
        found.add_column(header, justify="right")
    for each in checked:
        found.add_row(each.name, f"{each.predicted:.2f}", f"{each.measured:.2f}", f"{each.error:+.1%}")
    return found


def as_json(
    costs: Costs, estimates: Sequence[Estimate], load: Load, checked: Sequence[Checked] | None
) -> dict[str, object]:
    """Plain JSON types."""
    least = cheapest(estimates)

    def one(estimate: Estimate) -> dict[str, object]:
        choice = estimate.choice
        return {
            **_setting(costs, choice), "speedup": round(estimate.speedup, 4),
            "cost_per_million_tokens": None if estimate.cost is None else round(estimate.cost, 4),
            **estimate.figures.as_json(),
        }

    found: dict[str, object] = {
        "emulated": True, "label": LABEL, "streams": load.streams, "targets": load.targets,
        "best": one(fastest(estimates)), "cheapest": None if least is None else one(least),
        "settings": [one(estimate) for estimate in estimates],
    }
    if checked is not None:
        found["check"] = [each.as_json() for each in checked]
        found["check_max_error"] = round(max(abs(each.error) for each in checked), 4)
    return found


def _setting(costs: Costs, choice: Choice) -> dict[str, object]:
    return {
        "name": choice.name(costs), "tiers": [costs.names[tier] for tier in choice.tiers], "k": choice.lookahead,
        "overlap": choice.overlap, "draft_replicas": choice.drafters,
    }


def draw(costs: Costs, estimates: Sequence[Estimate], path: Path) -> None:
    """Speed-up over k, a line for each ladder, overlap and size of the draft pool. Raises `CannotPlot`."""
    plot.check(path)
    from matplotlib.figure import Figure  # late: only plots need it

    figure = Figure(figsize=(plot.WIDTH, plot.HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    lines: dict[tuple[tuple[int, ...], bool, int], list[Estimate]] = {}
    for estimate in estimates[1:]:
        choice = estimate.choice
        lines.setdefault((choice.tiers, choice.overlap, choice.drafters), []).append(estimate)
    for (tiers, overlap, drafters), line in lines.items():
        ladder = " → ".join(costs.names[tier] for tier in tiers)
        name = f"{ladder}{', overlapped' if overlap else ''}, {drafters} drafters"
        axes.plot([each.choice.lookahead for each in line], [each.speedup for each in line],
                  "--" if overlap else "-", marker="o", label=name)
    best = fastest(estimates)
    if best.choice.tiers:
        axes.plot([best.choice.lookahead], [best.speedup], "k*", markersize=14, label="best")
    axes.axhline(1.0, linestyle=":", color="grey", label="target alone")
    axes.set_xlabel(f"k, tokens drafted for a pass of the target ({LABEL})")
    axes.set_ylabel("speed-up")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=130)

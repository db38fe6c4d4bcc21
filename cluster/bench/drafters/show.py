"""Tables and plot of `bench drafters`, from what its findings hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from cluster.bench import plot
from cluster.bench.drafters.summary import ALONE, OVERALL
from cluster.bench.report import Findings

Rows = Sequence[Mapping[str, Any]]


def tables(findings: Findings) -> list[Table]:
    """At each temperature all kinds overall, then by category; then the lossy policies."""
    rows: Any = findings.details.get("rows", [])
    found = []
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        own = [row for row in rows if row["temperature"] == temperature]
        found += [overall_table(own, findings), category_table(own)]
    lossy: Any = findings.details.get("lossy")
    return [*found, lossy_table(lossy)] if lossy else found


def overall_table(rows: Rows, findings: Findings) -> Table:
    """One line per kind."""
    drafters: Any = findings.details["drafters"]
    table = Table(
        title=f"drafters at temperature {rows[0]['temperature']:g}, all questions", box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0), caption="draft: time per drafted token, of a target pass; accepted: of the drafts with a "
        "token at that position, by position; features: bytes per token",
    )
    table.add_column("kind", no_wrap=True)
    for header in ("MAT", "speed-up", "tok/s", "draft", "accepted, %", "weights MB", "KV MB", "features"):
        table.add_column(header, justify="right")
    for row in (row for row in rows if row["category"] == OVERALL):
        held = drafters.get(row["kind"])
        memory = ("", "", "") if held is None else (
            f"{(held['weight_bytes'] + held['other_bytes']) / 1e6:.1f}", f"{held['kv_bytes'] / 1e6:.1f}",
            str(held["feature_bytes_per_token"]),
        )
        shares = " ".join(f"{100 * share:.0f}" for share in row["acceptance_by_position"][:8])
        table.add_row(
            escape(row["kind"]), f"{row['mat']:.2f}", _speedup(row),
            _number(row["tokens_per_s"], ".1f"), _number(row["draft_share_of_target_pass"], ".1%"), shares, *memory,
        )
    return table


def category_table(rows: Rows) -> Table:
    """MAT and speed-up of each kind in each category."""
    categories = [name for name in dict.fromkeys(row["category"] for row in rows) if name != OVERALL]
    table = Table(title=f"MAT / speed-up at temperature {rows[0]['temperature']:g}", box=box.SIMPLE_HEAD)
    table.add_column("kind", no_wrap=True)
    for category in categories:
        table.add_column(category, justify="right")
    found = {(row["kind"], row["category"]): row for row in rows}
    for kind in dict.fromkeys(row["kind"] for row in rows if row["kind"] != ALONE):
        own = [found[kind, category] for category in categories]
        table.add_row(escape(kind), *(f"{row['mat']:.2f} / {_speedup(row)}" for row in own))
    return table


def lossy_table(lossy: Mapping[str, Any]) -> Table:
    """What each lossy policy gains, and what it costs."""
    table = Table(title=f"LOSSY policies beside the exact rule, drafter {lossy['drafter']}", box=box.SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    for header in ("T", "MAT (exact)", "over exact", "relaxed", "identical tokens", "perplexity (exact)"):
        table.add_column(header, justify="right")
    for row in lossy["rows"]:
        gain = row["speedup_over_exact"]
        table.add_row(
            row["policy"], f"{row['temperature']:g}", f"{row['mat']:.2f} ({row['exact_mat']:.2f})",
            "-" if gain is None else f"{gain['median']:.2f}x", f"{row['relaxed_share_of_accepted']:.1%}",
            _number(row["identical_tokens"], ".0%"), f"{row['perplexity']:.3f} ({row['exact_perplexity']:.3f})",
        )
    return table


def draw(findings: Findings, path: Path) -> None:
    """Speed-up by category, and acceptance by position, at each temperature. Raises `CannotPlot`."""
    plot.check(path)
    from matplotlib.figure import Figure  # late: only plots need it

    rows: Any = findings.details.get("rows", [])
    temperatures = list(dict.fromkeys(row["temperature"] for row in rows)) or [0.0]
    figure = Figure(figsize=(plot.WIDTH, plot.HEIGHT * len(temperatures)), layout="constrained")
    grid: Any = figure.subplots(len(temperatures), 2, squeeze=False)
    for (left, right), temperature in zip(grid, temperatures, strict=True):
        own = [row for row in rows if row["temperature"] == temperature and row["kind"] != ALONE]
        categories = list(dict.fromkeys(row["category"] for row in own))
        kinds = list(dict.fromkeys(row["kind"] for row in own))
        width = 0.8 / max(1, len(kinds))
        for index, kind in enumerate(kinds):
            speedups = [row["speedup"]["median"] if row["speedup"] else 0.0 for row in own if row["kind"] == kind]
            left.bar([place + (index - (len(kinds) - 1) / 2) * width for place in range(len(categories))], speedups,
                     width=width, label=kind)
            (whole,) = (row for row in own if row["kind"] == kind and row["category"] == OVERALL)
            shares = whole["acceptance_by_position"]
            right.plot(range(1, len(shares) + 1), shares, marker="o", label=kind)
        left.axhline(1.0, color="black", linewidth=0.8)
        left.set_xticks(range(len(categories)), categories, rotation=30, ha="right", fontsize=8)
        left.set_ylabel("speed-up over the target alone")
        right.set_xlabel("position in the draft")
        right.xaxis.get_major_locator().set_params(integer=True)
        right.set_ylabel("accepted")
        right.set_ylim(0, 1)
        left.set_title(f"temperature {temperature:g}", fontsize=9)
        if kinds:
            left.legend(fontsize=7)
    figure.savefig(path, dpi=130)


def _speedup(row: Mapping[str, Any]) -> str:
    return "-" if row["speedup"] is None else f"{row['speedup']['median']:.2f}x"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)

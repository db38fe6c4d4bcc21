"""`outrider bench ladder`: what cascades, overlapped rounds, trees and the controller bring, beside theory."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from cluster.cli import bench_show
from cluster.cli.output import CommandError, guard
from cluster.cli.stage import LocalStage

if TYPE_CHECKING:  # imported late: numpy and gRPC are wanted only here
    from cluster.bench.ladder.bench import LadderBench, LadderSettings

SECTIONS = "sync,overlap,trees,tiers,control,cpu,blocks,plan"


def ladder(
    only: Annotated[str, typer.Option(help="Sections to measure.")] = SECTIONS,
    prompts: Annotated[int, typer.Option(min=1, help="Answers per variant on emulated devices.")] = 6,
    max_tokens: Annotated[int, typer.Option(min=16, help="Tokens of each of them.")] = 176,
    lookaheads: Annotated[str, typer.Option(help="Draft tokens per round of the synchronous chains.")] = "3,5,8,12",
    workers: Annotated[int, typer.Option(min=1, help="Processes that simulate.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a plot: .png, .svg or .pdf.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the log of Ray and its workers.")] = False,
) -> None:
    """Measure the ladder: chains, overlap, trees, three tiers on EMULATED devices through gRPC; a real pair on CPUs.

    Control and planning run in simulated time. Goals that are missed do not fail the command; a text that speculation
    changed does.
    """
    with guard():
        settings = _settings(only, prompts, max_tokens, lookaheads, workers, plot)
        bench = _measured(settings, as_json, verbose)
        _show(bench, as_json, plot)


def _settings(
    only: str, prompts: int, max_tokens: int, lookaheads: str, workers: int, plot: Path | None
) -> LadderSettings:
    """Checked settings. Raises `CommandError`."""
    from cluster.bench import plot as plots
    from cluster.bench.ladder.bench import LadderSettings

    sections = tuple(part.strip() for part in only.split(",") if part.strip())
    if not sections or set(sections) - set(SECTIONS.split(",")):
        raise CommandError(f"--only {only!r}: choose from {SECTIONS}")
    try:
        if plot is not None:
            plots.check(plot)
        return LadderSettings(
            sections=sections, num_prompts=prompts, num_tokens=max_tokens,
            lookaheads=bench_show.integers(lookaheads, "--lookaheads"), workers=workers,
        )
    except ValueError as error:
        raise CommandError(str(error)) from error


def _measured(settings: LadderSettings, as_json: bool, verbose: bool) -> LadderBench:
    from cluster.bench.ladder.bench import TextsDiffer
    from cluster.bench.ladder.run import run
    from cluster.bench.serve.client_process import ClientFailed

    with (
        contextlib.closing(LocalStage(verbose=verbose)) as stage,
        bench_show.watcher(bench_show.screen(as_json)) as bar,
    ):
        try:
            return run(settings, stage, bar)
        except (TextsDiffer, ClientFailed) as error:
            raise CommandError(str(error)) from error


def _show(bench: LadderBench, as_json: bool, plot: Path | None) -> None:
    from cluster.bench.ladder import show
    from cluster.bench.ladder.goals import FIGURES
    from cluster.bench.report import skipped_lines

    console = bench_show.screen(as_json)
    for table in show.tables(bench):
        console.print(table)
    for line in skipped_lines(bench.findings):
        console.print(escape(line), style="yellow")
    if plot is not None:
        show.draw(bench, plot)
        console.print(f"plot: {plot}")
    if as_json:
        details = bench.findings.details
        asked = [name for section in bench.settings.sections for name in FIGURES[section] if name not in details]
        bench_show.print_json(bench.findings, asked)

"""`outrider bench scaling`: draft and target pools grow and shrink, each by its own load."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from cluster.cli import bench_show
from cluster.cli.output import CommandError, guard
from cluster.cli.stage import LocalStage


def scaling(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a plot: .png, .svg or .pdf.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the log of Ray and its workers.")] = False,
) -> None:
    """Play a load script of two to four minutes against a local cluster of EMULATED devices, and watch its pools.

    Goals that are missed do not fail the command; a request that fails, or a text that scaling changed, does.
    """
    from cluster.bench import plot as plots
    from cluster.bench.report import skipped_lines
    from cluster.bench.scaling import show
    from cluster.bench.scaling.run import run
    from cluster.bench.serve.client_process import ClientFailed

    console = bench_show.screen(as_json)
    with guard():
        try:
            if plot is not None:
                plots.check(plot)
            with contextlib.closing(LocalStage(verbose=verbose)) as stage, bench_show.watcher(console) as bar:
                bench = run(stage, bar)
        except (ValueError, ClientFailed) as error:
            raise CommandError(str(error)) from error
        for table in show.tables(bench):
            console.print(table)
        for line in skipped_lines(bench.findings):
            console.print(escape(line), style="yellow")
        if plot is not None:
            show.draw(bench, plot)
            console.print(f"plot: {plot}")
        if as_json:
            bench_show.print_json(bench.findings, ["draft_back_s"])
        figures = bench.findings.figures
        if figures["failed_requests"] or figures["differing_texts"]:
            raise CommandError(
                f"{figures['failed_requests']:g} requests failed, {figures['differing_texts']:g} texts differ: "
                "see `failures` of --json"
            )

"""How both benches show themselves: progress while they run, tables, plot and JSON when they are done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID

from cluster.cli.output import progress, stderr, stdout

if TYPE_CHECKING:  # imported late: numpy is wanted only when something is measured
    from cluster.bench.report import Findings, Goal
    from cluster.bench.serve.soak import Verdict


class Bar:
    """A `Watcher` on a progress bar: one task for the part that runs."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: TaskID | None = None

    def section(self, name: str, num_runs: int) -> None:
        """See `Watcher.section`."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=num_runs)

    def run_done(self) -> None:
        """See `Watcher.run_done`."""
        if self._task is not None:
            self._bar.advance(self._task)


def screen(as_json: bool) -> Console:
    """Where people read: with --json, standard output is left to the object."""
    return stderr if as_json else stdout


@contextmanager
def watcher(console: Console) -> Iterator[Bar]:
    """A bar for the length of the block."""
    with progress(console) as bar:
        yield Bar(bar)


def show(
    console: Console, title: str, findings: Findings, goals: Mapping[str, Goal], *, judged: bool
) -> None:
    """The figures, and what is missing."""
    from cluster.bench.report import figures_table, skipped_lines

    console.print(figures_table(title, findings, goals, judged=judged))
    for line in skipped_lines(findings):
        console.print(escape(line), style="yellow")


def print_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    """One line for each claim."""
    for verdict in verdicts:
        mark = {True: "[green]holds[/]", False: "[red]DOES NOT HOLD[/]", None: "[yellow]inconclusive[/]"}[verdict.holds]
        console.print(f"{mark}  {escape(verdict.claim)}: {escape(verdict.why)}")


def print_json(findings: Findings, expected: Sequence[str]) -> None:
    """One object on the last line of standard output."""
    print(json.dumps(findings.as_json(expected), ensure_ascii=False), flush=True)


def integers(text: str, option: str) -> tuple[int, ...]:
    """Ascending positive numbers from "1,2,5". Raises ValueError with one line."""
    try:
        values = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ValueError(f"{option} {text!r} is no list of numbers: write e.g. {option} 1,2,5") from None
    if values[0] < 1:
        raise ValueError(f"{option} {text!r} must hold positive numbers only")
    return values

"""How sampling and training look on a screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from actors.training.data.sample import Progress as Sampled
from actors.training.evaluate import Acceptance
from actors.training.run import Outcome
from actors.training.trainer import Report

_LINE_S = 30.0  # where nothing moves on a screen, a line so often


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn(),
        TimeRemainingColumn(), console=console, transient=True,
    )  # fmt: skip


class SamplingBar:
    """Tokens stored of those wanted."""

    def __init__(self, console: Console, wanted: int) -> None:
        self._console = console
        self._bar = _bar(console)
        self._task = self._bar.add_task("sampling", total=wanted, note="loading the target")
        self._began_s = self._said_s = time.monotonic()
        self.tokens_per_s = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, done: Sampled) -> None:
        """After every step."""
        now_s = time.monotonic()
        if done.num_written == 0:  # the target is loaded now
            self._began_s = now_s
        self.tokens_per_s = done.num_written / max(now_s - self._began_s, 1e-9)
        note = f"{done.num_tokens:,} tokens, {done.num_texts:,} conversations, {self.tokens_per_s:.0f} tokens/s"
        self._bar.update(self._task, completed=done.num_tokens, note=note)
        if not self._console.is_terminal and now_s - self._said_s > _LINE_S:
            self._said_s = now_s
            self._console.print(f"sampling: {note}")


class Quiet:
    """Shows nothing: of all ranks the first one speaks."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def stage(self, title: str) -> Callable[[int, int], None]:
        """As in `Watcher`."""
        return lambda done, total: None

    def report(self, report: Report) -> None:
        """As in `Watcher`."""


class Screen:
    """A bar for the stage under way; on a screen that is none, a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = _bar(console)
        self._task: TaskID | None = None
        self._said_s = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def stage(self, title: str) -> Callable[[int, int], None]:
        """As in `Watcher`."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        task = self._bar.add_task(title, total=None, note="")
        self._task = task
        if not self._console.is_terminal:
            self._console.print(title)

        def tell(done: int, total: int) -> None:
            self._bar.update(task, completed=done, total=total, note=f"{done}/{total}")

        return tell

    def report(self, report: Report) -> None:
        """As in `Watcher`."""
        watched = "  ".join(f"{name} {value:.3f}" for name, value in report.metrics.items())
        step = f"step {report.step}/{report.num_steps}"
        note = f"{step}  loss {report.loss:.3f}  {watched}  {report.tokens_per_s:.0f} tokens/s"
        if self._task is not None:
            self._bar.update(self._task, completed=report.progress, total=1.0, note=note)
        now_s = time.monotonic()
        if not self._console.is_terminal and now_s - self._said_s > _LINE_S:
            self._said_s = now_s
            self._console.print(note)


def outcome_table(outcome: Outcome) -> Table:
    """Acceptance before and after."""
    pairs: list[tuple[str, Acceptance | None]] = []
    for name, evaluation in (("untrained", outcome.untrained), ("trained", outcome.trained)):
        if evaluation is not None:
            pairs += [(f"{name}, greedy", evaluation.greedy), (f"{name}, temperature 1", evaluation.sampled)]
    found: list[tuple[str, Any]] = [(name, one) for name, one in pairs if one is not None]
    table = Table(title="acceptance on held-out conversations, by position in the draft", box=box.SIMPLE_HEAD)
    table.add_column("")
    for position in range(max((len(one.by_position) for _, one in found), default=0)):
        table.add_column(f"{position + 1}", justify="right")
    table.add_column("MAT", justify="right")
    for name, one in found:
        table.add_row(name, *(f"{share:.3f}" for share in one.by_position), f"{one.mat:.2f}")
    return table

"""The latest report of every process, for whoever is asked for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from cluster.telemetry.metrics import Report

STALE_S = 60.0  # a process that has not reported for this long is gone


class Board:
    """Reports by their source."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, stale_s: float = STALE_S) -> None:
        self._clock = clock
        self._stale_s = stale_s
        self._reports: dict[tuple[tuple[str, str], ...], tuple[float, Report]] = {}

    def put(self, reports: Iterable[Report]) -> None:
        """Replace what these sources said before."""
        now = self._clock()
        for report in reports:
            self._reports[report.source] = (now, report)

    def reports(self) -> list[Report]:
        """Of all that have spoken lately."""
        oldest = self._clock() - self._stale_s
        self._reports = {source: entry for source, entry in self._reports.items() if entry[0] >= oldest}
        return [report for _, report in self._reports.values()]


class MetricsBoard:
    """The board of several ingress replicas (wrapped as a Serve deployment in `cluster.app`): any of them may be
    asked for the metrics, and must answer for all.
    """

    def __init__(self) -> None:
        self._board = Board()

    async def put(self, reports: list[Report]) -> None:
        """As `Board.put`."""
        self._board.put(reports)

    async def reports(self) -> list[Report]:
        """As `Board.reports`."""
        return self._board.reports()

"""Resident memory of the service's processes over time, and whether it stays flat. Sampling apart from judging."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cluster.bench.stats import growth, spread, thinned

MIB = 2**20
MAX_POINTS = 400  # of a series, for judging and for the report
ALLOWED_SHARE = 0.03  # of its size a process may grow after the warm-up: allocators keep what they once needed
ALLOWED_MIB = 16.0  # or by this much, whichever is more
WORKER = "ray::"  # processes that run our code; the rest of Ray is reported, not judged


@dataclass
class Series:
    """One process."""

    name: str
    times_s: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)

    @property
    def judged(self) -> bool:
        """Whether it runs code of this project."""
        return self.name.startswith(WORKER) and not self.name.startswith("ray::IDLE")

    def grown_mib(self, after_s: float) -> float | None:
        """Growth from `after_s` to the end; None if it did not live through most of that time."""
        points = [(t, m) for t, m in zip(self.times_s, self.mib, strict=True) if t >= after_s]
        if len(points) < 4:
            return None
        indices = [int(i) for i in thinned(range(len(points)), MAX_POINTS)]
        return growth([points[i][0] for i in indices], [points[i][1] for i in indices])

    def flat(self, after_s: float) -> bool | None:
        """Whether its growth stays within what is allowed; None if that cannot be told."""
        grown = self.grown_mib(after_s)
        if grown is None:
            return None
        size = spread([m for t, m in zip(self.times_s, self.mib, strict=True) if t >= after_s]).median
        return grown <= max(ALLOWED_MIB, ALLOWED_SHARE * size)

    def as_json(self, after_s: float) -> dict[str, object]:
        """Thinned samples and the verdict."""
        grown = self.grown_mib(after_s)
        indices = [int(i) for i in thinned(range(len(self.mib)), 100)]
        return {
            "name": self.name, "judged": self.judged, "flat": self.flat(after_s),
            "growth_mib": None if grown is None else round(grown, 2),
            "last_mib": round(self.mib[-1], 1),
            "samples": [[round(self.times_s[i], 1), round(self.mib[i], 1)] for i in indices],
        }


class Sampler:
    """Reads the resident memory of processes every `period_s` in a thread, for the length of a `with` block."""

    def __init__(self, processes: Callable[[], Sequence[psutil.Process]], period_s: float = 2.0) -> None:
        self._processes = processes
        self._period_s = period_s
        self._series: dict[tuple[int, float], Series] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)
        self._began_s = time.monotonic()

    def __enter__(self) -> Sampler:
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def series(self) -> list[Series]:
        """What was read, largest process first."""
        return sorted(self._series.values(), key=lambda series: -max(series.mib))

    def _sample(self) -> None:
        while True:
            now = time.monotonic() - self._began_s
            for process in self._processes():
                try:
                    key = (process.pid, process.create_time())
                    mib = process.memory_info().rss / MIB
                    if key not in self._series:
                        self._series[key] = Series(name_of(process))
                except psutil.Error:
                    continue  # it has ended
                self._series[key].times_s.append(now)
                self._series[key].mib.append(mib)
            if self._stop.wait(self._period_s):
                return


def name_of(process: psutil.Process) -> str:
    """What the process is: Ray gives its workers titles like `ray::RankWorker.verify`; of a script, its file's name."""
    words = process.cmdline() or [process.name()]
    if words[0].startswith(WORKER):
        return str(words[0]).split(".")[0]
    script = next((word for word in words[1:] if word.endswith(".py")), None)
    return Path(script).name if script is not None else str(process.name())

"""What a service holds while nobody uses it, again and again: whether that grows. Reading apart from judging."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import psutil

from cluster.bench.serve.memory import MIB, name_of
from cluster.bench.serve.soak import Verdict
from cluster.bench.stats import growth

WARM_UP = 1 / 3  # of the readings: caches fill, and allocators keep what they once needed
LEAST_READINGS = 4  # after the warm-up
ALLOWED_FILES = 8.0  # descriptors by which a process may grow
# Ray's log monitor keeps the logs of processes that have ended open, until it has 200 (RAY_LOG_MONITOR_MAX_OPEN_FILES),
# then closes all. With its own it has no more than these.
BOUNDED_FILES = {"log_monitor.py": 250.0}
ALLOWED_SHARE = 0.05  # of its memory by which a process may grow,
ALLOWED_MIB = 24.0  # or so much, whichever is more
ALLOWED_STORE_MIB = 2.0


@dataclass(frozen=True, slots=True)
class Holding:
    """All processes of one kind."""

    num_processes: int
    mib: float  # resident, mean of a process
    num_files: float  # open descriptors, likewise


@dataclass(frozen=True, slots=True)
class Reading:
    """What there is at one moment without load."""

    at_s: float
    kinds: Mapping[str, Holding]
    store_mib: float  # objects in the store of all nodes
    num_stopped: int  # processes that stand still and were not ended
    held: tuple[str, ...]  # leases, sequences and pages that were not given back

    def as_json(self) -> dict[str, object]:
        """Plain JSON types."""
        return {
            "at_s": round(self.at_s, 1), "store_mib": round(self.store_mib, 2), "num_stopped": self.num_stopped,
            "held": list(self.held),
            "kinds": {
                name: [kind.num_processes, round(kind.mib, 1), round(kind.num_files, 1)]
                for name, kind in self.kinds.items()
            },
        }


def read(
    processes: Callable[[], Sequence[psutil.Process]], store_mib: float, held: Sequence[str], began_s: float
) -> Reading:
    """Look at every process now."""
    seen: dict[str, list[tuple[float, int]]] = defaultdict(list)
    num_stopped = 0
    for process in processes():
        try:
            name, mib, files = name_of(process), process.memory_info().rss / MIB, process.num_fds()
            num_stopped += process.status() == psutil.STATUS_STOPPED
        except psutil.Error:
            continue  # it has ended
        if not name.startswith("ray::IDLE"):  # workers that Ray keeps for the next who needs one
            seen[name].append((mib, files))
    kinds = {
        name: Holding(len(each), sum(m for m, _ in each) / len(each), sum(f for _, f in each) / len(each))
        for name, each in sorted(seen.items())
    }
    return Reading(time.monotonic() - began_s, kinds, store_mib, num_stopped, tuple(held))


def verdicts(readings: Sequence[Reading]) -> list[Verdict]:
    """No leak of pages, leases, processes, descriptors, memory and objects."""
    held = [line for reading in readings for line in reading.held]
    found = [Verdict(
        "KV pages and leases are given back", None if not readings else not held,
        held[0] if held else f"nothing was held in any of {len(readings)} looks without load",
    )]
    stopped = max((reading.num_stopped for reading in readings[-1:]), default=0)
    found.append(Verdict("no process stands still for good", not stopped, f"{stopped} at the end"))
    warm = warmed_up(readings)
    if len(warm) < LEAST_READINGS:
        why = f"{len(warm)} looks after the warm-up are too few; soak for longer"
        return [*found, *(Verdict(claim, None, why) for claim in (
            "as many processes as before", "open files are flat", "memory is flat", "the object store is flat"))]
    names = sorted({name for reading in warm for name in reading.kinds})
    return [
        *found, _counts(warm, names),
        _flat("open files are flat", warm, names, lambda kind: kind.num_files, lambda size: ALLOWED_FILES, "files",
              BOUNDED_FILES),
        _flat("memory is flat", warm, names, lambda kind: kind.mib,
              lambda size: max(ALLOWED_MIB, ALLOWED_SHARE * size), "MiB"),
        _store(warm),
    ]


def warmed_up(readings: Sequence[Reading]) -> Sequence[Reading]:
    """Those after the warm-up."""
    return readings[int(len(readings) * WARM_UP) :]


def more_processes(before: Reading, now: Reading) -> list[str]:
    """The kinds of which there are more now."""
    counts = {
        name: [reading.kinds[name].num_processes if name in reading.kinds else 0 for reading in (before, now)]
        for name in sorted({*before.kinds, *now.kinds})
    }
    return [f"{name}: {first} then {last}" for name, (first, last) in counts.items() if last > first]


def _counts(warm: Sequence[Reading], names: Sequence[str]) -> Verdict:
    more = more_processes(warm[0], warm[-1])
    return Verdict("as many processes as before", not more, "; ".join(more) or f"of each of {len(names)} kinds")


def _flat(
    claim: str, warm: Sequence[Reading], names: Sequence[str], value: Callable[[Holding], float],
    allowed: Callable[[float], float], unit: str, bounds: Mapping[str, float] = MappingProxyType({}),
) -> Verdict:
    """`bounds`: what grows is no leak as long as it stays below."""
    worst, worst_name, broken = 0.0, "", []
    for name in names:
        points = [(reading.at_s, value(reading.kinds[name])) for reading in warm if name in reading.kinds]
        if len(points) < LEAST_READINGS or max(size for _, size in points) <= bounds.get(name, 0.0):
            continue
        grown = growth([t for t, _ in points], [v for _, v in points])
        if grown > allowed(points[0][1]):
            broken.append(f"{name} grew by {grown:.1f} {unit}")
        if grown > worst:
            worst, worst_name = grown, name
    why = "; ".join(broken) or (f"most: {worst_name}, {worst:.1f} {unit}" if worst_name else "nothing grew")
    return Verdict(claim, not broken, why)


def _store(warm: Sequence[Reading]) -> Verdict:
    grown = growth([reading.at_s for reading in warm], [reading.store_mib for reading in warm])
    return Verdict(
        "the object store is flat", grown <= ALLOWED_STORE_MIB,
        f"grew by {grown:.2f} MiB to {warm[-1].store_mib:.2f} MiB",
    )

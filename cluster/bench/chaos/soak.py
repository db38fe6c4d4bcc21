"""A load that goes on while faults come at a steady pace; now and then it pauses, and what is held is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cluster.bench.chaos.bench import Bench
from cluster.bench.chaos.faults import Fault
from cluster.bench.chaos.judge import LEFT, OK, Stream, may_end, wrong_tokens
from cluster.bench.chaos.leaks import Reading, more_processes, read, warmed_up
from cluster.bench.chaos.load import Load
from cluster.bench.chaos.schedule import Blow
from cluster.bench.chaos.site import NotWhole, object_store_mib
from cluster.bench.chaos.strikes import RELAYED, STRIKES, NoVictim, Struck
from cluster.bench.serve.soak import Verdict
from cluster.cli import processes

PER_PAUSE = 6  # faults between two pauses
FELT_S = 60.0  # a fault may cut streams for so long
RELAY_S = 3.0  # after that time most streams were begun, and leased, through relays
SETTLE_S = 2.0  # of a pause, before anything is counted
REPLACED_S = 130.0  # HAProxy gives one that it replaced 120 s to end its streams (RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S)
LOOK_AGAIN_S = 10.0


@dataclass
class Soak:
    """What it brought."""

    struck: list[tuple[Fault, float]] = field(default_factory=list)  # faults, and when
    missed: list[str] = field(default_factory=list)  # faults that found nothing to strike
    streams: list[Stream] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    unwell: list[str] = field(default_factory=list)  # pauses in which the service did not become whole
    lasted_s: float = 0.0


def soak(bench: Bench, blows: Iterator[Blow], duration_s: float, every_s: float, on_blow: Callable[[], None]) -> Soak:
    """Run for `duration_s`, with a fault every `every_s`. Interrupted, it is judged as far as it came."""
    found, began_s = Soak(), time.monotonic()
    _pause(bench, found, began_s)
    with suppress(KeyboardInterrupt):
        while time.monotonic() - began_s < duration_s:
            _under_load(bench, blows, found, every_s, began_s + duration_s, on_blow)
            _pause(bench, found, began_s)
        _outlast(found, began_s)
    found.lasted_s = time.monotonic() - began_s
    return found


def _under_load(
    bench: Bench, blows: Iterator[Blow], found: Soak, every_s: float, end_s: float, on_blow: Callable[[], None]
) -> None:
    """As many faults as there are between two pauses."""
    load, running = bench.load(resumed=True), list[Struck]()
    load.start()
    try:
        for _ in range(PER_PAUSE):
            next_s = time.monotonic() + every_s
            _strike(bench, next(blows), found, running)
            on_blow()
            time.sleep(max(0.0, min(next_s, end_s) - time.monotonic()))
            if time.monotonic() >= end_s:
                break
    finally:
        _end(load, running, found)


def _strike(bench: Bench, blow: Blow, found: Soak, running: list[Struck]) -> None:
    """One fault, undone after its time."""
    try:
        if blow.fault.name in RELAYED:  # once more: replicas that were started since do not know
            bench.relay(True)
            time.sleep(RELAY_S)
        struck = STRIKES[blow.fault.name](bench.arms, blow)
        found.struck.append((blow.fault, struck.at_s))
        running.append(struck)
        time.sleep(max(0.0, struck.at_s + blow.lasts_s - time.monotonic()))
        struck.undo()
    except NoVictim as error:
        found.missed.append(f"{blow.fault.name}: {error}")


def _end(load: Load, running: Sequence[Struck], found: Soak) -> None:
    load.stop()
    found.streams += load.streams
    for struck in running:
        struck.join()
        found.streams += struck.streams


def _pause(bench: Bench, found: Soak, began_s: float) -> None:
    """Without load: everything is back, and everything is given back."""
    with suppress(NotWhole):
        bench.site.wait_whole()
        held = bench.site.wait_idle()
        time.sleep(SETTLE_S)
        _look(found, held, began_s)
        return
    found.unwell.append(f"after {time.monotonic() - began_s:.0f} s the service was not whole again")


def _look(found: Soak, held: Sequence[str], began_s: float) -> None:
    found.readings.append(read(processes.descendants, object_store_mib(), held, began_s))


def _outlast(found: Soak, began_s: float) -> None:
    """Look again until a process that was replaced a moment ago has ended, as it must within its time."""
    until_s = time.monotonic() + REPLACED_S
    while found.readings and time.monotonic() < until_s:
        if not more_processes(warmed_up(found.readings)[0], found.readings[-1]):
            return
        time.sleep(LOOK_AGAIN_S)
        _look(found, found.readings[-1].held, began_s)


def verdicts(found: Soak, expected: dict[str, tuple[int, ...]]) -> list[Verdict]:
    """All promises kept (pure)."""
    wrong = sum(wrong_tokens(stream, expected[stream.ask]) for stream in found.streams)
    broken = [stream for stream in found.streams if not _explained(stream, found.struck)]
    statuses = {stream.status for stream in broken}
    first = f"; the first: {broken[0].ask}: {broken[0].status}: {broken[0].detail}" if broken else ""
    return [
        Verdict("no token is lost, repeated or another", wrong == 0 if found.streams else None,
                f"{wrong} in {len(found.streams)} streams"),
        Verdict("every stream that is promised is kept", not broken,
                f"{len(broken)} were not ({', '.join(sorted(statuses)) or 'none'}){first}"),
        Verdict("the service becomes whole again", not found.unwell,
                found.unwell[0] if found.unwell else f"after each of {len(found.struck)} faults"),
    ]


def _explained(stream: Stream, struck: Sequence[tuple[Fault, float]]) -> bool:
    """Whether it ended well, or by a fault that may end it."""
    if stream.status in (OK, LEFT):
        return True
    return any(
        stream.began_s <= at_s + FELT_S and at_s <= stream.ended_s and may_end(stream, fault)
        for fault, at_s in struck
    )

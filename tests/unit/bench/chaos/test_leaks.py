"""What grows while nobody uses a service is found; what is noise or was there from the start is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster.bench.chaos import soak
from cluster.bench.chaos.leaks import Holding, Reading, verdicts

Grow = Callable[[int], float]
CLAIMS = (
    "KV pages and leases are given back", "no process stands still for good", "as many processes as before",
    "open files are flat", "memory is flat", "the object store is flat",
)


def flat(at: int) -> float:
    return 0.0


def readings(
    count: int = 12, *, processes: Grow = flat, mib: Grow = flat, files: Grow = flat, store: Grow = flat,
    stopped: int = 0, held: tuple[str, ...] = (),
) -> list[Reading]:
    return [
        Reading(
            100.0 * i, {"ray::RankWorker": Holding(2 + int(processes(i)), 400 + i % 3 + mib(i), 60 + i % 2 + files(i))},
            1.0 + store(i), stopped if i == count - 1 else 0, held if i == count // 2 else (),
        )
        for i in range(count)
    ]


def broken(found: list[Reading]) -> list[str]:
    return [verdict.claim for verdict in verdicts(found) if verdict.holds is False]


def test_nothing_is_found_where_nothing_grows() -> None:
    found = verdicts(readings())
    assert tuple(verdict.claim for verdict in found) == CLAIMS
    assert all(verdict.holds for verdict in found)


def test_what_grew_while_it_warmed_up_is_no_leak() -> None:
    assert broken(readings(mib=lambda i: 0.0 if i < 3 else 90.0, files=lambda i: 0.0 if i < 3 else 40.0)) == []


@pytest.mark.parametrize(
    ("found", "claim"),
    [
        (readings(held=("draft x: 1 leases",)), CLAIMS[0]), (readings(stopped=1), CLAIMS[1]),
        (readings(processes=lambda i: i // 6), CLAIMS[2]), (readings(files=lambda i: 2.0 * i), CLAIMS[3]),
        (readings(mib=lambda i: 8.0 * i), CLAIMS[4]), (readings(store=lambda i: 1.0 * i), CLAIMS[5]),
    ],
    ids=CLAIMS,
)
def test_each_kind_of_leak_is_found_and_no_other(found: list[Reading], claim: str) -> None:
    assert broken(found) == [claim]


def test_too_few_looks_prove_nothing() -> None:
    few = verdicts(readings(count=4))
    assert [verdict.holds for verdict in few] == [True, True, None, None, None, None]
    assert verdicts([])[0].holds is None


@pytest.mark.parametrize(("per_look", "leaks"), [(16.0, False), (24.0, True)])
def test_what_grows_towards_a_limit_of_rays_own_is_a_leak_only_beyond_it(per_look: float, leaks: bool) -> None:
    found = [
        Reading(100.0 * i, {"log_monitor.py": Holding(2, 80.0, 50 + per_look * i)}, 1.0, 0, ()) for i in range(12)
    ]
    assert broken(found) == ([CLAIMS[3]] if leaks else [])


def test_a_process_that_was_replaced_is_given_its_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    found = soak.Soak(readings=readings(processes=lambda i: i == 11))
    later = iter([replace(found.readings[-1], at_s=1110.0), replace(found.readings[0], at_s=1120.0)])
    monkeypatch.setattr(soak, "read", lambda *arguments: next(later))
    monkeypatch.setattr(soak, "object_store_mib", lambda: 1.0)
    monkeypatch.setattr(soak, "LOOK_AGAIN_S", 0.0)
    assert broken(found.readings) == [CLAIMS[2]]
    soak._outlast(found, 0.0)
    assert broken(found.readings) == []
    soak._outlast(found, 0.0)  # nothing to wait for: nobody looks again
    assert len(found.readings) == 14


def test_a_process_that_stays_is_a_leak_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    found = soak.Soak(readings=readings(processes=lambda i: i == 11))
    monkeypatch.setattr(soak, "read", lambda *arguments: found.readings[-1])
    monkeypatch.setattr(soak, "object_store_mib", lambda: 1.0)
    monkeypatch.setattr(soak, "LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(soak, "REPLACED_S", 0.01)
    soak._outlast(found, 0.0)
    assert broken(found.readings) == [CLAIMS[2]]

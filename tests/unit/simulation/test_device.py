"""A device runs one pass at a time, never with more rows than it takes, and batches what waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf

import numpy as np
import pytest

from actors.emulation.pace import Pace
from cluster.simulation.clock import run, running_loop
from cluster.simulation.device import Device, Pass, Work

PACE = Pace(1.0, 4, 0.5)


def served(
    calls: Sequence[tuple[float, Sequence[int]]], max_rows: int = 100, gather_s: float = 0.0, latest: float = inf
) -> tuple[list[Pass], list[tuple[int, float]]]:
    """Passes, and (call, when it was done), of calls (when, rows of each pass)."""
    ends: list[tuple[int, float]] = []

    async def main() -> list[Pass]:
        loop = running_loop()
        device = Device(loop, PACE, max_rows, gather_s)

        def submit(index: int, rows: Sequence[int]) -> None:
            device.submit(Work(rows, lambda work: ends.append((index, loop.time())), latest_begin_s=latest))

        for index, (at, rows) in enumerate(calls):
            loop.call_at(at, submit, index, rows)
        await asyncio.sleep(1000.0)
        return device.passes

    return run(main()), ends


def test_calls_of_one_instant_share_a_pass_and_late_ones_take_the_next() -> None:
    passes, ends = served([(0.0, [2]), (0.0, [1]), (0.5, [1])])
    assert passes == [Pass(0.0, 1.0, 3), Pass(1.0, 1.0, 1)]
    assert ends == [(0, 1.0), (1, 1.0), (2, 2.0)]


def test_rows_beyond_the_flat_part_cost_time() -> None:
    passes, _ = served([(0.0, [6])])
    assert passes == [Pass(0.0, 2.0, 6)]


def test_a_draft_takes_a_pass_per_token_with_others_beside_it() -> None:
    passes, ends = served([(0.0, [2, 1, 1]), (1.5, [3])])
    assert [step.rows for step in passes] == [2, 1, 4]
    assert ends == [(0, 3.0), (1, 3.0)]


def test_what_does_not_fit_waits_and_long_calls_go_in_pieces() -> None:
    passes, ends = served([(0.0, [7]), (0.0, [2])], max_rows=4)
    assert [step.rows for step in passes] == [4, 4, 1]
    assert ends == [(0, 2.0), (1, 3.0)]


def test_work_past_its_time_ends_with_what_is_there() -> None:
    passes, ends = served([(0.0, [1, 1, 1])], latest=1.5)
    assert [step.begin_s for step in passes] == [0.0, 1.0]
    assert ends == [(0, 2.0)]


def test_gathering_lets_the_answered_come_back_in_time() -> None:
    passes, _ = served([(0.0, [1]), (0.5, [1]), (1.2, [1])], gather_s=0.25)
    assert passes == [Pass(0.0, 1.0, 1), Pass(1.25, 1.0, 2)]


@pytest.mark.parametrize("seed", range(20))
def test_passes_never_overlap_and_never_exceed_their_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    calls = [
        (float(rng.uniform(0, 20)), rng.integers(1, 9, rng.integers(1, 6)).tolist()) for _ in range(40)
    ]
    max_rows = int(rng.integers(1, 12))
    passes, ends = served(calls, max_rows, gather_s=float(rng.choice([0.0, 0.3])))
    assert sorted(index for index, _ in ends) == list(range(40))
    assert sum(step.rows for step in passes) == sum(sum(rows) for _, rows in calls)
    for step in passes:
        assert 1 <= step.rows <= max_rows
        assert step.seconds == PACE.seconds(step.rows)
    for before, after in zip(passes, passes[1:], strict=False):
        assert after.begin_s >= before.begin_s + before.seconds - 1e-9

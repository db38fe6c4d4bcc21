"""How many replicas a load needs: enough for it, no fewer than leave it room, and none of what nobody wants."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.scaling.rules import SLACK, Limits, Load, wanted_drafts, wanted_targets

LIMITS = Limits(capacity=10, target_load=0.5, target_kv=0.8, max_starved=0.1)  # five sequences a replica
numbers = st.integers(0, 8)
amounts = st.floats(0, 100)


@pytest.mark.parametrize(("load", "expected"), [
    (Load(1), 1),  # an idle target stays
    (Load(1, num_sequences=5), 1),
    (Load(1, num_sequences=5.1), 2),
    (Load(1, num_sequences=3, num_waiting=9), 3),  # those who wait count like those who have a place
    (Load(1, num_sequences=1, kv_used=0.95), 2),  # one long sequence may need more than many short ones
    (Load(3, num_sequences=3, kv_used=2.0), 3),  # two replicas would be full with it
    (Load(3, num_sequences=3, kv_used=1.2), 2),
])
def test_a_target_has_room_for_its_sequences_and_their_pages(load: Load, expected: int) -> None:
    assert wanted_targets(load, LIMITS) == expected


@pytest.mark.parametrize(("load", "expected"), [
    (Load(2, num_sequences=9), 0),  # leases that nobody uses
    (Load(2, num_sequences=9, rounds=100, wanted=100), 2),
    (Load(2, num_sequences=9, rounds=100, wanted=20), 1),  # most rounds go plain
    (Load(1, num_sequences=9, rounds=100, wanted=100), 2),
    (Load(1, num_sequences=4, rounds=100, wanted=100, starved=30), 2),
    (Load(5, num_sequences=20, rounds=100, wanted=100, starved=60), 8),
    (Load(1, num_sequences=4, rounds=10, wanted=10, starved=9), 1),  # too few rounds to tell
    (Load(2, num_sequences=1, rounds=100, wanted=100, starved=7), 2),  # fewer would starve more
    (Load(2, num_sequences=1, rounds=100, wanted=100, starved=1), 1),
    (Load(0, rounds=3, wanted=3, starved=3), 1),  # somebody wants it back
    (Load(0, rounds=30), 0),
])
def test_drafts_follow_those_who_use_them_and_those_who_starve(load: Load, expected: int) -> None:
    assert wanted_drafts(load, LIMITS) == expected


@given(numbers, amounts, amounts, st.floats(0, 8))
def test_a_steady_load_settles_at_one_number(now: int, sequences: float, waiting: float, kv: float) -> None:
    load = Load(now, sequences, kv, waiting, 100, 100)
    for rule in (wanted_targets, wanted_drafts):
        reached = rule(load, LIMITS)
        assert rule(replace(load, num_replicas=reached), LIMITS) == reached


@given(st.integers(1, 8), st.floats(0, 40))
def test_the_load_fits_and_fewer_would_leave_no_room(now: int, sequences: float) -> None:
    reached = wanted_targets(Load(now, num_sequences=sequences), LIMITS)
    assert sequences <= reached * 5 + 1e-6
    if reached < now:
        assert sequences <= reached * 5 * SLACK + 1e-6

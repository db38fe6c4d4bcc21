"""A phase of the load script ends when the pools are as it wants them, and not for ever when they are not."""

from __future__ import annotations

from cluster.bench.scaling.run import HELD_S, over
from cluster.bench.scaling.script import DRAFT, TARGET, Phase
from cluster.bench.scaling.trace import Sample

PHASE = Phase("many", 10.0, 9, 0, drafts=3, targets=1, patience_s=20.0)


def samples(until_s: float, drafts_from_s: float) -> list[Sample]:
    """Twice a second; three drafts from a time on, one before."""
    times = [half / 2 for half in range(int(2 * until_s) + 1)]
    return [Sample(at_s, {DRAFT: 3 if at_s >= drafts_from_s else 1, TARGET: 1}, {}) for at_s in times]


def test_a_phase_lasts_its_least_time_even_if_nothing_has_to_change() -> None:
    assert not over(PHASE, 5.0, samples(14.5, 0.0))
    assert over(PHASE, 5.0, samples(15.0, 0.0))


def test_a_phase_waits_until_the_wanted_replicas_have_been_there_for_a_while() -> None:
    assert not over(PHASE, 5.0, samples(18.0, 18.0))
    assert not over(PHASE, 5.0, samples(18.0 + HELD_S - 0.5, 18.0))
    assert over(PHASE, 5.0, samples(18.0 + HELD_S, 18.0))


def test_a_phase_is_not_waited_for_beyond_its_patience() -> None:
    assert not over(PHASE, 5.0, samples(34.5, 99.0))
    assert over(PHASE, 5.0, samples(35.0, 99.0))

"""What a controller learns of passes: one that several sequences report counts once, however regular the device is."""

from __future__ import annotations

from cluster.coordinator.control.costs import SAME_PASSES, PassCurve
from cluster.coordinator.control.replica import Replica


def test_a_pass_that_several_sequences_report_counts_once() -> None:
    curve = PassCurve()
    assert [curve.observe(32, 0.07, now) for now in (1.0, 1.001, 1.003)] == [True, False, False]
    assert curve.num_samples(32) == 1


def test_a_short_pass_counts_once_however_long_its_sequences_take_to_report_it() -> None:
    curve = PassCurve()
    assert sum(curve.observe(64, 0.0041, 1.0 + 0.001 * number, round_s=0.15) for number in range(64)) == 1


def test_passes_of_a_device_that_always_takes_the_same_time_count_each() -> None:
    curve = PassCurve()
    step = SAME_PASSES * 0.07 + 0.001
    assert all(curve.observe(32, 0.07, number * step) for number in range(5))
    assert curve.num_samples(32) == 5


def test_how_crowded_passes_are_is_learned_anew_from_passes_that_are_all_alike() -> None:
    replica = Replica(PassCurve())
    replica.num_running = replica.planned = 64
    replica.saw_pass(112, 0.12, 1.0, 0.0, 0.142, drafting=False, alike=True)  # others were still drafting
    assert replica.ratio(64, drafting=False) == 112 / 64
    for number in range(1, 400):
        replica.saw_pass(32, 0.07, 1.0, 0.3 * number, 0.142, drafting=False, alike=True)
    assert replica.ratio(64, drafting=False) < 0.55

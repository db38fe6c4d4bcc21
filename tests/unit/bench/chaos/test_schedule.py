"""A schedule is a function of its seed, and leaves out nothing."""

from __future__ import annotations

from collections import Counter

from cluster.bench.chaos.faults import BY_NAME, FAULTS, Promise
from cluster.bench.chaos.schedule import AFTER_S, endless, schedule
from cluster.bench.chaos.strikes import RELAYED, STRIKES


def test_every_kind_comes_as_often_as_asked_in_an_order_of_the_seed() -> None:
    blows = schedule(FAULTS, 20, seed=3)
    assert Counter(blow.fault.name for blow in blows) == dict.fromkeys(BY_NAME, 20)
    assert blows == schedule(FAULTS, 20, seed=3)
    assert [blow.fault.name for blow in blows] != [blow.fault.name for blow in schedule(FAULTS, 20, seed=4)]
    for blow in blows:
        assert AFTER_S[0] <= blow.after_s <= AFTER_S[1]
        assert blow.fault.lasts_s[0] <= blow.lasts_s <= blow.fault.lasts_s[1]
        assert [blow.pick(count) for count in (1, 2, 3)] == [int(blow.where * count) for count in (1, 2, 3)]
        assert blow.chance().random() == blow.chance().random()


def test_a_run_is_the_same_whatever_else_is_asked_for() -> None:
    alone = {blow.number: blow for blow in schedule([BY_NAME["delay"]], 5, seed=9)}
    among = {blow.number: blow for blow in schedule(FAULTS, 7, seed=9) if blow.fault.name == "delay"}
    assert all(among[number] == blow for number, blow in alone.items())


def test_a_soak_meets_every_kind_before_any_again() -> None:
    blows = endless(FAULTS, seed=1, count=3 * len(FAULTS) + 2)
    assert len(blows) == 3 * len(FAULTS) + 2
    for start in (0, len(FAULTS), 2 * len(FAULTS)):
        turn = [blow.fault.name for blow in blows[start : start + len(FAULTS)]]
        assert sorted(turn) == sorted(BY_NAME)
    assert len({(blow.fault.name, blow.seed) for blow in blows}) == len(blows)


def test_there_are_enough_kinds_and_each_can_be_brought_about() -> None:
    assert len(FAULTS) >= 15
    assert set(STRIKES) == set(BY_NAME)
    assert set(BY_NAME) > RELAYED
    assert {fault.name for fault in FAULTS if fault.promise is Promise.CUT} == {
        "kill_ingress", "kill_proxy", "kill_proxy_manager"
    }

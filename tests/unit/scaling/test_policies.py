"""Serve's policies: from what replicas and coordinators report, by a set clock, to numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from actors.messages import ReplicaStats
from cluster.config import ConfigError, load_config
from cluster.coordinator.demand import Demand
from cluster.scaling import reports
from cluster.scaling.options import ingress_scaling, pool_scaling
from cluster.scaling.policies import DraftPolicy, IngressPolicy, TargetPolicy
from cluster.scaling.reports import STALE_S, of_ingress, of_replica

DRAFT, TARGET = 0, 1
LIMITS = {"capacity": 10, "target_load": 0.5}
DELAYS = {"up_s": 4.0, "down_s": 10.0, "zero_s": 20.0}
START = 1.7e9


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "latest", reports.Latest())


class Clock:
    """The controller's loop: two pools and the ingress, in the time that the test sets."""

    def __init__(self) -> None:
        self.now = START
        self.demand = Demand()
        self.ingress, self.draft = IngressPolicy(), DraftPolicy(DRAFT, LIMITS, DELAYS)
        self.target = TargetPolicy(TARGET, LIMITS, DELAYS)
        self.numbers = {DRAFT: 1, TARGET: 1}
        self.series: dict[Any, dict[str, dict[str, list[Any]]]] = {}
        self.waiting = {DRAFT: 0, TARGET: 0}

    def _note(self, deployment: Any, replica: str, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            points = self.series.setdefault(deployment, {}).setdefault(name, {}).setdefault(replica, [])
            points.append(SimpleNamespace(timestamp=self.now, value=value))
            del points[:-6]

    def _context(self, deployment: Any, number: int, low: int) -> Any:
        return SimpleNamespace(
            app_name="outrider", deployment_name=str(deployment), current_time=self.now,
            raw_metrics=self.series.get(deployment), target_num_replicas=number, current_num_replicas=number,
            capacity_adjusted_min_replicas=low, capacity_adjusted_max_replicas=3,
        )

    def run(self, seconds: int, *, sequences: int = 0, kv: float = 0.0, rounds: int = 0, wanted: bool = True,
            starved: bool = False, silent: bool = False) -> dict[int, int]:
        """So many seconds of one load (`kv`: replicas full of pages), spread over each pool; a report every two."""
        for _ in range(seconds):
            self.now += 1
            for _ in range(rounds):
                self.demand.count((DRAFT,) if wanted else (), {DRAFT} if starved else set())
            if round(self.now) % 2 == 0 and not silent:
                self._note("ingress", "i", of_ingress(self.demand, self.waiting))
                for pool, number in self.numbers.items():
                    for replica in range(number):
                        stats = ReplicaStats(0, round(100 * (1 - kv / number)), 0, 100, 0, 0)
                        self._note(pool, f"{pool}/{replica}", of_replica(sequences // number, stats))
            assert self.ingress(self._context("ingress", 2, 2))[0] == 2
            for pool, policy, low in ((DRAFT, self.draft, 0), (TARGET, self.target, 1)):
                self.numbers[pool] = policy(self._context(pool, self.numbers[pool], low))[0]
        return self.numbers


def test_both_pools_go_up_and_down_each_by_its_own_load() -> None:
    clock = Clock()
    assert clock.run(20, sequences=3, rounds=9) == {DRAFT: 1, TARGET: 1}
    assert clock.run(30, sequences=12, rounds=30) == {DRAFT: 3, TARGET: 3}
    assert clock.run(30, sequences=12, rounds=30, wanted=False) == {DRAFT: 0, TARGET: 3}  # drafts do not pay just now
    assert clock.run(40, sequences=2, rounds=9) == {DRAFT: 1, TARGET: 1}


def test_pages_bring_targets_without_any_more_sequences() -> None:
    assert Clock().run(20, sequences=1, kv=0.9, rounds=9) == {DRAFT: 2, TARGET: 2}  # a draft keeps pages as well


def test_starving_rounds_bring_drafts_alone_and_step_by_step() -> None:
    clock = Clock()
    assert clock.run(11, sequences=3, rounds=9, starved=True) == {DRAFT: 2, TARGET: 1}
    assert clock.run(8, sequences=3, rounds=9, starved=True) == {DRAFT: 3, TARGET: 1}
    assert clock.run(9, sequences=3, rounds=9, starved=True) == {DRAFT: 3, TARGET: 1}  # the bound


def test_drafts_go_to_none_and_are_back_as_soon_as_one_is_wanted() -> None:
    clock = Clock()
    clock.run(10, sequences=1, rounds=9)
    assert clock.run(50) == {DRAFT: 0, TARGET: 1}
    assert clock.run(3, rounds=9, starved=True) == {DRAFT: 1, TARGET: 1}


def test_sequences_that_look_for_a_place_bring_targets() -> None:
    clock = Clock()
    clock.waiting[TARGET] = 4
    assert clock.run(20, sequences=3, rounds=9)[TARGET] == 2


def test_silence_changes_nothing() -> None:
    clock = Clock()
    busy = dict(clock.run(30, sequences=12, rounds=30))
    clock.run(int(STALE_S) + 1, silent=True)
    assert clock.run(100, silent=True) == busy


def test_replicas_on_their_way_bring_no_others_and_may_be_called_off() -> None:
    clock = Clock()
    assert clock.run(12, sequences=8, rounds=9)[TARGET] == 2
    for sequences, expected in ((20, 2), (1, 1)):  # no room in the cluster for the second
        for _ in range(30):
            clock.now += 1
            clock._note(TARGET, "one", of_replica(sequences, ReplicaStats(0, 100, 0, 100, 0, 0)))
            context = clock._context(TARGET, 2, 1)
            context.current_num_replicas = 1
            number = clock.target(context)[0]
        assert number == expected


def config(**replicas: Any) -> dict[str, Any]:
    tier = {"model": "builtin:smollm2"}
    return {"tiers": [{"name": "draft", **tier, "replicas": replicas}, {"name": "target", **tier}]}


def test_a_fixed_number_needs_no_policy() -> None:
    fixed = load_config(config(min=2, max=2), environ={})
    assert pool_scaling(fixed, 0) == {"num_replicas": 2}
    assert ingress_scaling(fixed) == {"num_replicas": 1}


def test_serve_is_given_a_policy_that_it_can_import_and_make() -> None:
    varying = load_config(config(min=0, max=3, zero_delay_s=5), environ={})
    options = pool_scaling(varying, 0)["autoscaling_config"]
    assert (options.min_replicas, options.initial_replicas, options.max_replicas) == (0, 1, 3)
    policy = options.policy.get_policy()(**options.policy.policy_kwargs)
    assert policy(Clock()._context(DRAFT, 1, 0))[0] == 1
    assert ingress_scaling(varying)["autoscaling_config"].policy.get_policy()()(Clock()._context("i", 1, 1))[0] == 1


def test_policies_that_serve_has_shipped_share_what_the_ingress_reports() -> None:
    varying = load_config(config(min=0, max=3, upscale_delay_s=2), environ={})
    clock = Clock()
    shipped = [options["autoscaling_config"].policy for options in (ingress_scaling(varying), pool_scaling(varying, 0))]
    clock.ingress, clock.draft = (policy.get_policy()(**policy.policy_kwargs) for policy in shipped)
    assert clock.run(30, sequences=100, rounds=30)[DRAFT] == 3


@pytest.mark.parametrize(("tier", "replicas", "says"), [
    (1, {"min": 0}, "only tiers below it may go to none"),
    (0, {"min": 1, "max": 2, "zero_delay_s": 5}, "set min: 0 or remove it"),
    (0, {"min": 3, "max": 2}, "raise max or lower min"),
    (0, {"max_starved": 0}, "max_starved"),
])
def test_a_mistake_is_one_line(tier: int, replicas: dict[str, Any], says: str) -> None:
    settings = config()
    settings["tiers"][tier]["replicas"] = replicas
    with pytest.raises(ConfigError) as caught:
        load_config(settings, environ={})
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1

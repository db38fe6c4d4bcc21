"""The replica that knows a prompt is preferred by as much as the prompt is worth, and never when it is full."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.routing import PREFIX_WORTH, Candidate, Preference, rank

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
CAPACITY = 16


def order(loads: dict[str, int], shares: dict[str, float] | None = None, avoid: str = "") -> list[list[str]]:
    preference = Preference(shares or {}, frozenset(avoid))
    return rank([Candidate(tag, load) for tag, load in loads.items()], preference, CAPACITY)


def test_without_a_known_prefix_serve_takes_the_least_busy() -> None:
    assert order({"a": 3, "b": 1}) == [["a", "b"]]


def test_the_longest_prefix_comes_first_then_shorter_ones_then_the_rest() -> None:
    assert order({"a": 0, "b": 0, "c": 0}, {"a": 0.2, "b": 0.9}) == [["b"], ["a"], ["c"]]


def test_a_busy_replica_loses_to_an_idle_one_when_the_prefix_is_not_worth_it() -> None:
    worth = int(PREFIX_WORTH * CAPACITY)
    assert order({"a": worth - 1, "b": 0}, {"a": 1.0}) == [["a"], ["b"]]
    assert order({"a": worth, "b": 0}, {"a": 1.0}) == [["a", "b"]]
    assert order({"a": 1, "b": 0}, {"a": 0.1}) == [["a", "b"]]


def test_full_and_avoided_replicas_are_the_last_resort() -> None:
    assert order({"a": CAPACITY, "b": 5, "c": 0}, {"a": 1.0, "c": 1.0}, avoid="c") == [["b"], ["a", "c"]]
    assert order({"a": CAPACITY}, {"a": 1.0}) == [["a"]]
    assert order({"a": 0}, avoid="a") == [["a"]]
    assert order({}) == []


loads = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, CAPACITY + 3))


@relaxed
@given(loads=loads, shares=st.dictionaries(st.sampled_from("abcdefx"), st.floats(0, 1)),
       avoid=st.frozensets(st.sampled_from("abcdefx")))
def test_every_replica_is_named_once_and_unknown_ones_never(
    loads: dict[str, int], shares: dict[str, float], avoid: frozenset[str]
) -> None:
    groups = rank([Candidate(tag, load) for tag, load in loads.items()], Preference(shares, avoid), CAPACITY)
    named = [tag for group in groups for tag in group]
    assert sorted(named) == sorted(loads)
    assert all(groups)


@relaxed
@given(loads=loads, shares=st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1)))
def test_more_load_never_improves_a_replicas_place(loads: dict[str, int], shares: dict[str, float]) -> None:
    def place(loads: dict[str, int], tag: str) -> int:
        groups = rank([Candidate(each, load) for each, load in loads.items()], Preference(shares), CAPACITY)
        return next(i for i, group in enumerate(groups) if tag in group)

    for tag in loads:
        busier = {**loads, tag: loads[tag] + 1}
        if min(busier.values()) == min(loads.values()):  # else all others move with it
            assert place(busier, tag) >= place(loads, tag)

"""Who gives pages back: the youngest or the forgotten, never an older sequence at work, never in vain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actors.engine.preemption import RESTING_S, Holder, Preemption

POLICY = Preemption()
HOLDERS = st.lists(
    st.tuples(st.integers(1, 20), st.none() | st.floats(0, 20)), min_size=1, max_size=12
).map(lambda states: [Holder(f"s{age}", age, pages, idle_s) for age, (pages, idle_s) in enumerate(states)])


@given(holders=HOLDERS, age=st.integers(0, 12), wanted=st.integers(1, 60))
def test_only_younger_or_forgotten_sequences_lose_pages_and_no_more_of_them_than_needed(
    holders: list[Holder], age: int, wanted: int
) -> None:
    victims = POLICY.victims(age, holders, wanted)
    assert all(v.age > age or (v.age != age and v.idle_s is not None and v.idle_s > RESTING_S) for v in victims)
    assert len({v.sequence_id for v in victims}) == len(victims)
    if victims:
        assert sum(v.num_pages for v in victims) >= wanted
        assert sum(v.num_pages for v in victims[:-1]) < wanted
    else:
        assert POLICY.takeable(age, holders) < wanted


@given(holders=HOLDERS, wanted=st.integers(1, 60))
def test_the_oldest_sequence_can_have_everything_but_what_no_sequence_holds_for_long(
    holders: list[Holder], wanted: int
) -> None:
    others = sum(h.num_pages for h in holders if h.age > 0)
    assert POLICY.takeable(0, holders) == others
    assert bool(POLICY.victims(0, holders, wanted)) == (others >= wanted)


@given(holders=HOLDERS, a=st.integers(0, 11), b=st.integers(0, 11))
def test_two_sequences_at_work_never_take_pages_from_each_other(holders: list[Holder], a: int, b: int) -> None:
    """The reason why there is no livelock: the order of taking has no cycle."""
    busy = [Holder(h.sequence_id, h.age, h.num_pages, None) for h in holders]

    def takes(age: int, other: int) -> bool:
        everything = POLICY.takeable(age, busy)
        return any(victim.age == other for victim in POLICY.victims(age, busy, everything))

    if a != b:
        assert not (takes(a, b) and takes(b, a))


def test_forgotten_sequences_go_first_then_the_youngest() -> None:
    holders = [
        Holder("old", 0, 5, None), Holder("resting", 1, 5, 0.2), Holder("forgotten", 2, 5, RESTING_S + 1),
        Holder("forgotten longer", 3, 5, RESTING_S + 9), Holder("young", 4, 5, None), Holder("younger", 5, 5, 0.1),
    ]
    names = [v.sequence_id for v in POLICY.victims(1, holders, 20)]
    assert names == ["forgotten longer", "forgotten", "younger", "young"]
    assert POLICY.victims(5, holders, 11) == []

"""Sequences move to replicas that come: about the newcomers' share of them, once, and never because others left."""

from __future__ import annotations

from cluster.running import Running, Stay


def test_about_the_newcomers_share_of_the_sequences_moves_and_nobody_is_asked_twice() -> None:
    pool = Running(frozenset("a"))
    stays = [Stay(pool, f"s{i}") for i in range(300)]
    assert not any(stay.over for stay in stays)
    pool.told(frozenset("abc"))
    moved = [stay.over for stay in stays]
    assert 170 < sum(moved) < 230
    assert [stay.over for stay in stays] == moved
    later = [Stay(pool, f"s{i}") for i in range(300)]
    pool.told(frozenset("ab"))
    assert not any(stay.over for stay in later), "those of the replica that left have moved already"
    pool.told(frozenset("abd"))
    assert 70 < sum(stay.over for stay in later) < 130


def test_the_first_replicas_of_a_pool_and_others_in_their_place_move_nobody() -> None:
    pool = Running()
    for tags in ("a", "ab", "", "cd", "ef"):
        pool.told(frozenset(tags))
    assert pool.growths == (0.5,)

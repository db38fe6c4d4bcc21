"""Pointed cases of the KV bookkeeping, one invariant each."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from actors.engine.kv import IntegrityError, KVManager, UnknownSequence, parallel_copies

PAGE = 4


def written(kv: KVManager, name: str, token_ids: list[int], commit: bool = True) -> int:
    """Open `name` on `token_ids`, write what is not cached; returns the number of cached tokens."""
    found = kv.open(name, token_ids)
    assert kv.reserve(name, len(token_ids)) is not None
    kv.advance(name, token_ids[found:])
    if commit:
        kv.commit(name, len(token_ids))
    return found


def test_committed_full_pages_are_found_by_a_later_prompt() -> None:
    kv = KVManager(8, PAGE)
    written(kv, "a", list(range(10)))
    assert kv.open("b", list(range(12))) == 8
    assert kv.pages("b").tolist() == kv.pages("a")[:2].tolist()


def test_at_least_one_token_is_left_to_compute() -> None:
    kv = KVManager(8, PAGE)
    written(kv, "a", list(range(8)))
    assert kv.open("b", list(range(8))) == 4
    assert kv.open("c", list(range(4))) == 0
    assert kv.open("d", []) == 0


def test_unverified_tokens_are_never_found() -> None:
    kv = KVManager(8, PAGE)
    written(kv, "a", list(range(12)), commit=False)
    assert kv.open("b", list(range(12))) == 0
    kv.commit("a", 7)
    assert kv.open("c", list(range(12))) == 4


def test_a_rejected_draft_leaves_nothing_in_the_cache() -> None:
    kv = KVManager(8, PAGE)
    written(kv, "a", [1, 2, 3], commit=True)
    kv.reserve("a", 8)
    kv.advance("a", [4, 5, 6, 7, 8])
    kv.truncate("a", 3)
    kv.reserve("a", 8)
    kv.advance("a", [9, 9, 9, 9, 9])
    kv.commit("a", 8)
    assert kv.open("b", [1, 2, 3, 4, 5]) == 0
    assert kv.open("c", [1, 2, 3, 9, 5]) == 4


def test_a_page_is_only_found_after_its_own_prefix() -> None:
    kv = KVManager(8, PAGE)
    written(kv, "a", [1, 1, 1, 1, 2, 2, 2, 2])
    assert kv.open("b", [2, 2, 2, 2, 5]) == 0
    assert kv.open("c", [3, 3, 3, 3, 2, 2, 2, 2, 5]) == 0


def test_a_hash_collision_cannot_serve_other_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    constant = hashlib.blake2b(b"", digest_size=16)
    monkeypatch.setattr(hashlib, "blake2b", lambda *args, **kwargs: constant)
    kv = KVManager(8, PAGE)
    written(kv, "a", [1, 2, 3, 4])
    assert kv.open("b", [5, 6, 7, 8, 9]) == 0
    assert kv.open("c", [1, 2, 3, 4, 9]) == 4


def test_released_pages_stay_cached_until_somebody_needs_them_least_recent_first() -> None:
    kv = KVManager(4, PAGE)
    for name, token in (("a", 1), ("b", 2)):
        written(kv, name, [token] * 4)
        kv.release(name)
    assert (kv.num_cached, kv.num_free) == (2, 4)
    kv.open("c", [3])
    assert kv.reserve("c", 3 * PAGE) == []  # two free pages and the oldest cached one
    assert kv.num_cached == 1
    assert kv.open("old", [1] * 5) == 0
    assert kv.open("recent", [2] * 5) == 4


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    kv = KVManager(3, PAGE)
    written(kv, "a", list(range(12)))
    kv.release("a")
    kv.open("b", [99])
    kv.reserve("b", 1)
    kv.check_integrity()
    assert kv.open("c", list(range(12))) == 8


def test_a_reserve_that_does_not_fit_changes_nothing() -> None:
    kv = KVManager(2, PAGE)
    written(kv, "a", [1, 2, 3])
    assert kv.reserve("a", 3 * PAGE) is None
    assert kv.num_free == 1 and len(kv.pages("a")) == 1
    assert kv.reserve("a", 2 * PAGE) == []


def test_a_fork_copies_only_the_page_it_writes() -> None:
    kv = KVManager(8, PAGE)
    written(kv, "a", list(range(6)))
    kv.fork("a", "b")
    assert kv.num_free == 6
    shared = kv.pages("a").tolist()
    (copy,) = kv.reserve("b", 7) or []
    assert copy[0] == shared[1] and kv.pages("b").tolist() == [shared[0], copy[1]]
    assert kv.reserve("a", 7) == []  # now the only holder of its last page
    kv.check_integrity()


def test_a_fork_takes_back_what_its_parent_had_reserved_in_the_shared_page() -> None:
    kv = KVManager(8, PAGE)
    written(kv, "a", [1, 2])
    kv.fork("a", "b")
    with pytest.raises(ValueError, match="reserve"):
        kv.advance("a", [3])


def test_a_cached_page_is_copied_before_it_is_written_after_a_truncation() -> None:
    kv = KVManager(8, PAGE)
    written(kv, "a", list(range(8)))
    kv.truncate("a", 6)
    (copy,) = kv.reserve("a", 7) or []
    kv.advance("a", [77])
    assert kv.open("b", list(range(9))) == 8 and kv.pages("b")[1] == copy[0]
    assert kv.tokens("a").tolist() == [0, 1, 2, 3, 4, 5, 77]
    kv.check_integrity()


def test_one_sequence_can_always_use_every_page() -> None:
    kv = KVManager(2, PAGE)
    written(kv, "a", list(range(8)))
    kv.truncate("a", 6)
    assert kv.reserve("a", 8) == []  # no page left for a copy: written in place, uncached first
    kv.advance("a", [77, 78])
    kv.release("a")
    assert kv.open("b", list(range(9))) == 4


def test_truncate_is_absolute_and_idempotent_and_returns_pages() -> None:
    kv = KVManager(8, PAGE)
    written(kv, "a", list(range(10)), commit=False)
    kv.reserve("a", 24)
    for _ in range(2):
        kv.truncate("a", 5)
        assert kv.length("a") == 5 and kv.num_free == 6
    for wrong in (-1, 6):
        with pytest.raises(ValueError, match="truncate"):
            kv.truncate("a", wrong)


def test_duplicate_pages_of_concurrent_prompts_are_tolerated() -> None:
    kv = KVManager(8, PAGE)
    kv.open("a", list(range(5)))
    kv.open("b", list(range(5)))
    for name in "ab":
        kv.reserve(name, 5)
        kv.advance(name, list(range(5)))
        kv.commit(name, 5)
    kv.check_integrity()
    kv.release("a")
    kv.release("b")
    kv.check_integrity()
    assert kv.num_cached == 1


def test_commit_never_takes_back_and_never_runs_ahead_of_what_is_written() -> None:
    kv = KVManager(8, PAGE)
    written(kv, "a", list(range(5)))
    kv.commit("a", 0)
    assert kv.open("b", list(range(5))) == 4
    with pytest.raises(ValueError, match="commit"):
        kv.commit("a", 6)


def test_wrong_ids_are_refused_by_name() -> None:
    kv = KVManager(8, PAGE)
    kv.open("a", [1])
    with pytest.raises(ValueError, match="'a' is open already"):
        kv.open("a", [1])
    with pytest.raises(UnknownSequence, match="'z' is not open"):
        kv.length("z")
    with pytest.raises(ValueError, match="page"):
        KVManager(0, PAGE)
    with pytest.raises(ValueError, match="page_tokens"):
        KVManager(1, 0)


def test_slots_beyond_the_reserved_pages_are_refused() -> None:
    kv = KVManager(8, PAGE)
    kv.open("a", [1])
    kv.reserve("a", 5)
    assert kv.slots("a", 0, 8).dtype == np.int32
    with pytest.raises(ValueError, match="reserved"):
        kv.slots("a", 0, 9)


def test_views_cannot_change_the_books() -> None:
    kv = KVManager(8, PAGE)
    written(kv, "a", [1, 2])
    for view in (kv.tokens("a"), kv.pages("a")):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 3


def test_discarded_pages_are_never_found_and_shared_ones_are_not_given_to_be_overwritten() -> None:
    kv = KVManager(8, PAGE)
    written(kv, "a", list(range(8)))
    written(kv, "b", [0, 1, 2, 3, 9])
    shared, own = kv.pages("b").tolist()
    assert kv.discard("b") == [own]
    assert kv.length("b") == 0 and kv.pages("a")[0] == shared
    kv.check_integrity()
    assert kv.open("c", list(range(9))) == 0


def test_a_leak_is_detected() -> None:
    kv = KVManager(8, PAGE)
    written(kv, "a", [1, 2])
    kv.truncate("a", 2)
    kv._ledger.share(int(kv.pages("a")[0]))
    with pytest.raises(IntegrityError, match="2 references but 1 holders"):
        kv.check_integrity()


def test_chained_and_repeated_copies_become_order_free() -> None:
    assert parallel_copies([(0, 1), (1, 2)]) == [(0, 1), (0, 2)]
    assert parallel_copies([(0, 1), (3, 1)]) == [(3, 1)]
    assert parallel_copies([(0, 1), (1, 0)]) == [(0, 1)]

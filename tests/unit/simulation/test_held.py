"""A simulated replica follows the truth, feeds no more than is new, and takes over the branch that came true."""

from __future__ import annotations

from cluster.simulation.held import Text


def told(text: Text, start: int, tokens: list[int]) -> tuple[int, list[int]] | None:
    found = text.tell(start, tokens)
    return None if found is None else (found.rows, found.beyond)


def drafted(text: Text, tokens: list[int]) -> None:
    text.extend(tokens)
    text.num_cached = len(text.ids) - 1


def test_a_prompt_is_fed_whole_and_then_only_what_is_new() -> None:
    text = Text()
    assert told(text, 0, [1, 2, 3]) == (3, [])
    drafted(text, [4, 5])
    assert told(text, 3, [4, 9]) == (1, [])  # the second token was rejected
    assert text.ids == [1, 2, 3, 4, 9]


def test_after_a_fully_accepted_draft_its_last_token_is_caught_up() -> None:
    text = Text()
    told(text, 0, [1, 2, 3])
    drafted(text, [4, 5])
    assert told(text, 3, [4, 5, 6]) == (2, [])


def test_more_than_is_held_is_a_missing_prefix() -> None:
    text = Text()
    told(text, 0, [1, 2, 3])
    assert told(text, 4, [5]) is None


def test_a_repeated_call_feeds_the_last_token_only() -> None:
    text = Text()
    told(text, 0, [1, 2, 3])
    text.num_cached = 3
    assert told(text, 0, [1, 2, 3]) == (1, [])


def test_the_branch_that_shares_most_with_the_truth_takes_over() -> None:
    text = Text()
    told(text, 0, [1, 2, 3, 4, 5])  # three of the truth, then a draft of two
    text.num_cached = 5
    text.keep([[4, 7, 70, 71], [4, 5, 6, 60, 61], [8, 80]], 3)
    assert told(text, 3, [4, 5, 6]) == (1, [60, 61])
    assert text.ids == [1, 2, 3, 4, 5, 6]
    assert text.branches == []


def test_branches_that_did_not_come_true_change_nothing() -> None:
    text = Text()
    told(text, 0, [1, 2, 3, 4, 5])
    text.num_cached = 5
    text.keep([[7, 70], [4, 9, 90]], 3)
    assert told(text, 3, [4, 5, 6]) == (1, [])
    assert text.ids == [1, 2, 3, 4, 5, 6]

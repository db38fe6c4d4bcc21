"""What every drafter can do ahead: go on after the whole draft, with its next token in the verifier's place."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from actors.drafters.base import Drafter
from actors.messages import AheadPlan, Context, Draft, DraftShape, Enumeration, Ids, Laws, ReplicaStats
from tests.unit.drafters.conftest import REJECTION, context

TEXT = np.array([1, 2, 3], np.int32)
DRAFT = Draft(np.array([4, 5], np.int32))


class Counting(Drafter):
    """Counts on from the last token, each drawn from a law of its own, and one token more than it is asked for."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """The numbers that follow."""
        self.told = context.tokens.tolist()
        tokens = self.told[-1] + 1 + np.arange(shape.num_tokens + 1, dtype=np.int32)
        probs = (tokens / 100).astype(np.float32)
        laws = Laws(tokens.copy(), probs, np.arange(len(tokens) + 1, dtype=np.int32))
        future: Future[Draft] = Future()
        future.set_result(Draft(tokens, laws=laws))
        return future

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Holds nothing."""

    def stats(self) -> ReplicaStats:
        """Nothing."""
        return ReplicaStats(0, 0, 0, 0, 0, 0)

    def shutdown(self) -> None:
        """Nothing runs."""


def ahead(num_tokens: int, total: int = 100, draft: Draft = DRAFT) -> tuple[Counting, Enumeration]:
    drafter = Counting()
    plan = AheadPlan(DraftShape(num_tokens), 4, 2, total, 1.0)
    return drafter, drafter.enumerate(context(TEXT, 2, REJECTION), draft, 7, plan).result(0)


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_a_branch_keeps_the_law_that_each_of_its_tokens_was_drawn_from(num_tokens: int) -> None:
    drafter, found = ahead(num_tokens)
    assert drafter.told == [1, 2, 3, 4, 5]
    (branch,) = found.branches
    assert (found.round, branch.node, branch.token) == (7, 1, 6)
    assert branch.draft.tokens.tolist() == list(range(7, 7 + num_tokens))
    assert branch.draft.laws is not None and branch.draft.laws.num_tokens == num_tokens
    for place, token in enumerate(branch.draft.tokens.tolist()):
        ids, probs = branch.draft.laws.at(place)
        assert ids.tolist() == [token]
        assert probs[0] == np.float32(token / 100)


@pytest.mark.parametrize(("total", "length"), [(9, 2), (8, 1), (7, 0)])
def test_there_is_room_for_two_tokens_of_the_verifier(total: int, length: int) -> None:
    _, found = ahead(3, total)
    assert [len(branch.draft.tokens) for branch in found.branches] == ([length] if length else [])
    assert found.error is None


def test_a_tree_is_not_gone_on_after() -> None:
    _, found = ahead(3, draft=Draft(np.array([4, 5], np.int32), parents=np.array([-1, -1], np.int32)))
    assert found.branches == () and found.error is not None

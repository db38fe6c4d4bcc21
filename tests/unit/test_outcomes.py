"""The target picks the branch that fits: whichever comes first, the outcome or the enumeration."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from actors.messages import Branch, Context, Draft, Enumeration, Origin, Verdict
from actors.outcomes import Outcomes
from actors.sampling.params import SamplingParams


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def context(round: int, *tokens: int) -> Context:
    return Context("s", 0, ids(*tokens), 1, len(tokens), SamplingParams(), round)


def enumeration(round: int) -> Enumeration:
    return Enumeration(round, (Branch(1, 9, Draft(ids(20, 21))), Branch(-1, 5, Draft(ids(30)))))


def decided(*tokens: int, path: tuple[int, ...] | None = None) -> Future[Verdict]:
    future: Future[Verdict] = Future()
    future.set_result(Verdict(ids(*tokens), len(tokens) - 1, 4, Origin.RECOVERED, path=path))
    return future


class Target:
    def __init__(self) -> None:
        self.asked: list[tuple[Context, Draft]] = []
        self.answers: list[Future[Verdict]] = []
        self.outcomes = Outcomes(self.verify, 8, 1)

    def verify(self, context: Context, draft: Draft) -> Future[Verdict]:
        self.asked.append((context, draft))
        self.answers.append(Future())
        return self.answers[-1]

    def meet(self, round: int, verify_round: int) -> Future[Verdict]:
        answer: Future[Verdict] = Future()
        self.outcomes.meet("s", round, enumeration(verify_round), answer)
        return answer


@pytest.mark.parametrize("early", [True, False], ids=["enumeration first", "outcome first"])
def test_the_branch_that_fits_is_verified_after_the_accepted_tokens(early: bool) -> None:
    target = Target()
    asked = context(3, 1, 2)
    target.outcomes.begin(asked)
    if early:
        answer = target.meet(4, 3)
        assert not answer.done()
    target.outcomes.decided(asked, decided(7, 8, 9))
    if not early:
        answer = target.meet(4, 3)
    (told, draft), = target.asked
    assert (told.start, told.tokens.tolist(), told.num_committed, told.round) == (2, [7, 8, 9], 5, 4)
    assert draft.tokens.tolist() == [20, 21]
    verdict = decided(20, 21, 22).result()
    target.answers[0].set_result(verdict)
    assert answer.result(0) is verdict


@pytest.mark.parametrize("tokens", [(7, 8, 4), (7, 9), (4,)])
def test_an_outcome_that_nobody_drafted_for_is_a_miss_at_once(tokens: tuple[int, ...]) -> None:
    target = Target()
    asked = context(3, 1, 2)
    target.outcomes.begin(asked)
    answer = target.meet(4, 3)
    target.outcomes.decided(asked, decided(*tokens))
    assert answer.result(0).missed
    assert target.asked == []


def test_the_node_of_a_tree_is_the_last_of_the_accepted_path() -> None:
    target = Target()
    asked = context(3, 1, 2)
    target.outcomes.begin(asked)
    target.outcomes.decided(asked, decided(7, 9, path=(1,)))
    assert not target.meet(4, 3).done()
    assert target.asked[0][1].tokens.tolist() == [20, 21]


def test_a_pass_that_is_not_known_or_failed_is_a_miss() -> None:
    target = Target()
    assert target.meet(4, 3).result(0).missed
    asked = context(5, 1, 2)
    target.outcomes.begin(asked)
    answer = target.meet(6, 5)
    failed: Future[Verdict] = Future()
    failed.set_exception(RuntimeError("broken"))
    target.outcomes.decided(asked, failed)
    assert answer.result(0).missed


def test_an_enumeration_of_an_earlier_pass_is_a_miss() -> None:
    target = Target()
    for round in (3, 4):
        target.outcomes.begin(context(round, 1, 2))
        target.outcomes.decided(context(round, 1, 2), decided(7, 8, 9))
    assert target.meet(6, 3).result(0).missed


def test_a_closed_sequence_is_forgotten_and_what_waits_for_it_misses() -> None:
    target = Target()
    target.outcomes.begin(context(3, 1, 2))
    answer = target.meet(4, 3)
    target.outcomes.forget("s")
    assert answer.result(0).missed
    target.outcomes.decided(context(3, 1, 2), decided(7, 8, 9))  # its job ends all the same
    assert target.asked == []


def test_a_later_enumeration_replaces_one_that_waits() -> None:
    target = Target()
    target.outcomes.begin(context(3, 1, 2))
    first, second = target.meet(4, 3), target.meet(5, 3)
    assert first.result(0).missed
    target.outcomes.decided(context(3, 1, 2), decided(7, 8, 9))
    assert [told.round for told, _ in target.asked] == [5]
    assert not second.done()


def test_memory_is_bounded_when_sequences_end_without_a_word() -> None:
    target = Target()
    for number in range(50):
        told = Context(f"s{number}", 0, ids(1), 1, 1, SamplingParams(), 1)
        target.outcomes.begin(told)
        target.outcomes.decided(told, decided(7, 8, 9))
    assert len(target.outcomes._latest) <= 8
    assert len(target.outcomes._running) <= 8

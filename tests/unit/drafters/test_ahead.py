"""Drafts for outcomes, made ahead: what a branch holds is what would have been drafted had one waited for the truth."""

from __future__ import annotations

import numpy as np
import pytest

from actors.drafters.model import ModelDrafter
from actors.messages import AheadPlan, Branch, Context, Draft, DraftShape, Enumeration, Ids
from actors.sampling.noise import Purpose, branch_stream, stream
from actors.sampling.params import SamplingParams
from actors.verifier import Verifier
from tests.models import VOCAB
from tests.unit.drafters.conftest import COUPLED, GREEDY, PROMPT, REJECTION, Make, context

LONG_S = 600.0  # time enough


def plan(branches: int = 12, guesses: int = 4, k: int = 5, total: int = 400, time_s: float = LONG_S) -> AheadPlan:
    return AheadPlan(DraftShape(k), branches, guesses, total, time_s)


def propose(drafter: ModelDrafter, told: Context, k: int = 5) -> Draft:
    draft = drafter.propose(told, DraftShape(k)).result(60)
    assert draft.error is None
    return draft


def enumerate_(drafter: ModelDrafter, told: Context, draft: Draft, ahead: AheadPlan) -> Enumeration:
    return drafter.enumerate(told, draft, told.round - 1, ahead).result(60)


def after(ids: Ids, draft: Draft, branch: Branch) -> Ids:
    """The text that an outcome makes."""
    return np.concatenate([ids, draft.tokens[: branch.node + 1], [branch.token]]).astype(np.int32)


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_a_branch_is_what_would_have_been_proposed_after_its_outcome(make: Make, sampling: SamplingParams) -> None:
    ahead, plain = make(), make()
    ids, round = PROMPT, 1
    draft = propose(ahead, context(ids, round, sampling))
    for turn in range(4):  # the second turn on, branches of branches
        round += 1
        found = enumerate_(ahead, context(ids, round, sampling), draft, plan(branches=24))
        assert found.error is None
        assert found.round == round - 1
        assert len(found.branches) == len({(b.node, b.token) for b in found.branches}) == 24  # 4 after each of 6
        assert max(b.node for b in found.branches) == len(draft.tokens) - 1
        for number, branch in enumerate(found.branches):
            if branch.node + 1 < len(draft.tokens):
                assert branch.token != draft.tokens[branch.node + 1]
            told = context(after(ids, draft, branch), 100 * turn + number, sampling, "b")
            assert branch.draft.tokens.tolist() == propose(plain, told).tokens.tolist()
            assert branch.draft.laws is None
        taken = found.branches[(7 * turn) % 24]
        ids, draft = after(ids, draft, taken), taken.draft


def test_the_likeliest_outcome_by_the_drafters_own_law_is_its_full_draft_and_next_token(make: Make) -> None:
    drafter = make()
    longer = propose(drafter, context(PROMPT, 1), 6).tokens
    found = enumerate_(drafter, context(PROMPT, 2), Draft(longer[:5]), plan(branches=24))
    assert found.find(4, int(longer[5])) is not None


def test_a_draft_that_goes_on_with_the_adopted_branch_costs_no_pass(make: Make) -> None:
    drafter, plain = make(), make()
    draft = propose(drafter, context(PROMPT, 1))
    found = enumerate_(drafter, context(PROMPT, 2), draft, plan(k=4))
    branch = found.branches[5]
    ids = after(PROMPT, draft, branch)
    before = drafter.stats()
    again = propose(drafter, context(ids, 3, start=len(PROMPT)), 4)
    assert again.tokens.tolist() == branch.draft.tokens.tolist()
    assert drafter.stats().num_steps == before.num_steps
    more = propose(drafter, context(ids, 4, start=len(ids)), 7)
    assert drafter.stats().num_rows == before.num_rows + 3  # the last token of the four, and two more
    assert more.tokens.tolist() == propose(plain, context(ids, 1, name="b"), 7).tokens.tolist()


def test_a_hit_keeps_the_cache_of_its_branch(make: Make) -> None:
    drafter = make()
    draft = propose(drafter, context(PROMPT, 1))
    branch = enumerate_(drafter, context(PROMPT, 2), draft, plan()).branches[3]
    ids = after(PROMPT, draft, branch)
    before = drafter.stats().num_rows
    found = enumerate_(drafter, context(ids, 3, start=len(PROMPT)), branch.draft, plan(branches=1))
    assert len(found.branches) == 1
    assert drafter.stats().num_rows == before + 1 + 5  # the last token of the draft, and the branch


@pytest.mark.parametrize("sampling", [GREEDY, REJECTION], ids=["greedy", "rejection"])
def test_no_time_gives_no_branches_and_no_error(make: Make, sampling: SamplingParams) -> None:
    drafter = make()
    draft = propose(drafter, context(PROMPT, 1, sampling))
    steps = drafter.stats().num_steps
    found = enumerate_(drafter, context(PROMPT, 2, sampling), draft, plan(time_s=0.0))
    assert (found.branches, found.error) == ((), None)
    assert drafter.stats().num_steps == steps


def test_a_draft_that_was_forgotten_has_the_same_outcomes(make: Make) -> None:
    drafter, other = make(), make()
    draft = propose(drafter, context(PROMPT, 1))
    found = enumerate_(drafter, context(PROMPT, 2), draft, plan())
    elsewhere = enumerate_(other, context(PROMPT, 2), draft, plan())
    assert [(b.node, b.token) for b in elsewhere.branches] == [(b.node, b.token) for b in found.branches]


def test_a_plain_pass_has_outcomes_as_well(make: Make) -> None:
    drafter = make()
    token = int(propose(drafter, context(PROMPT, 1), 1).tokens[0])
    found = enumerate_(drafter, context(PROMPT, 2), Draft(np.empty(0, np.int32)), plan(branches=3))
    assert found.branches[0].node == -1
    assert found.branches[0].token == token
    assert len(found.branches) == 3


def test_branches_end_where_the_plan_or_the_model_does(make: Make) -> None:
    drafter = make()
    draft = propose(drafter, context(PROMPT, 1))
    found = enumerate_(drafter, context(PROMPT, 2), draft, plan(branches=40, total=len(PROMPT) + 7))
    for branch in found.branches:
        assert len(after(PROMPT, draft, branch)) + len(branch.draft.tokens) + 1 <= len(PROMPT) + 7
    assert max(len(b.draft.tokens) for b in found.branches) == 5
    short = make(max_context_tokens=len(PROMPT) + 7)
    draft = propose(short, context(PROMPT, 1))
    found = enumerate_(short, context(PROMPT, 2), draft, plan(branches=40))
    longest = {len(after(PROMPT, draft, b)) + len(b.draft.tokens) for b in found.branches}
    assert max(longest) == len(PROMPT) + 8
    assert found.error is None


def test_a_later_call_ends_an_enumeration_and_stale_rounds_change_nothing(make: Make) -> None:
    drafter = make()
    draft = propose(drafter, context(PROMPT, 5))
    running = drafter.enumerate(context(PROMPT, 6), draft, 5, plan(k=200))
    stale = enumerate_(drafter, context(PROMPT, 2), draft, plan())
    assert stale.error is not None
    assert "later call" in stale.error
    assert not running.done()
    again = propose(drafter, context(PROMPT, 7))
    ended = running.result(60)
    assert all(len(b.draft.tokens) < 200 for b in ended.branches)
    assert again.tokens.tolist() == draft.tokens.tolist()


def test_closing_ends_an_enumeration(make: Make) -> None:
    drafter = make()
    draft = propose(drafter, context(PROMPT, 1))
    running = drafter.enumerate(context(PROMPT, 2), draft, 1, plan(k=300))
    drafter.close("a")
    assert isinstance(running.result(60), Enumeration)
    assert drafter.stats().num_sequences == 0


def test_cancelling_ends_nothing_but_what_has_not_begun(make: Make) -> None:
    drafter = make()
    draft = propose(drafter, context(PROMPT, 1))
    for round in range(2, 12):
        running = drafter.enumerate(context(PROMPT, round), draft, round - 1, plan(k=40))
        if not running.cancel():
            assert isinstance(running.result(60), Enumeration)
    assert propose(drafter, context(PROMPT, 20)).tokens.tolist() == draft.tokens.tolist()


def test_an_unknown_prefix_is_asked_for(make: Make) -> None:
    drafter = make()
    found = enumerate_(drafter, context(PROMPT, 1, start=5), Draft(np.array([1, 2], np.int32)), plan())
    assert found.prefix_missing
    assert found.error is None


def test_no_sequence_may_take_the_name_of_a_branch(make: Make) -> None:
    drafter = make()
    draft = drafter.propose(context(PROMPT, 1, name="a\0" + "2.0"), DraftShape(3)).result(60)
    assert draft.error is not None
    assert "U+0000" in draft.error


def test_sampled_branches_carry_their_laws_and_share_no_noise(make: Make) -> None:
    drafter = make()
    draft = propose(drafter, context(PROMPT, 1, REJECTION))
    found = enumerate_(drafter, context(PROMPT, 2, REJECTION), draft, plan(branches=20, k=3))
    firsts = set()
    for branch in found.branches:
        laws = branch.draft.laws
        assert laws is not None
        assert laws.num_tokens == len(branch.draft.tokens) == 3
        for i, token in enumerate(branch.draft.tokens):
            assert token in laws.at(i)[0]
        firsts.add(tuple(branch.draft.tokens.tolist()))
    assert len(firsts) > 1


def test_a_sampled_branch_that_was_told_is_drawn_anew(make: Make) -> None:
    """Tokens that a verifier may have seen are no sample of their law any more; unseen ones are, and are kept."""
    drafter = make()
    draft = propose(drafter, context(PROMPT, 1, REJECTION))
    found = enumerate_(drafter, context(PROMPT, 2, REJECTION), draft, plan(k=3))
    ids = after(PROMPT, draft, found.branches[0])
    steps = drafter.stats().num_steps
    fresh = propose(drafter, context(ids, 3, REJECTION), 3)
    assert drafter.stats().num_steps == steps + 3
    assert fresh.laws is not None


@pytest.mark.parametrize(
    ("draft", "why"),
    [
        (Draft(np.array([1, 10**6], np.int32)), "outside the vocabulary"),
        (Draft(np.array([1, 2], np.int32), parents=np.array([-1], np.int32)), "2 draft tokens came with 1 parents"),
        (Draft(np.array([1, 2], np.int32), parents=np.array([1, -1], np.int32)), "parents come first"),
    ],
    ids=["foreign", "short", "cyclic"],
)
def test_a_draft_that_cannot_be_run_is_refused_in_one_sentence(make: Make, draft: Draft, why: str) -> None:
    found = enumerate_(make(), context(PROMPT, 2), draft, plan())
    assert found.branches == ()
    assert found.error is not None
    assert why in found.error


def test_no_two_drafts_of_a_sequence_share_noise() -> None:
    streams = [stream(9, Purpose.DRAFT, 0, round) for round in range(4)]
    streams += [branch_stream(9, 0, round, verified, branch) for round, verified, branch in np.ndindex(4, 4, 4)]
    firsts = {float(one.random()) for one in streams}
    assert len(firsts) == len(streams)


def test_tokens_of_a_branch_are_drawn_from_the_law_that_it_carries(make: Make) -> None:
    drafter, runs = make(), 400
    counts, law = np.zeros(VOCAB), np.zeros(VOCAB)
    for entropy in range(runs):
        sampling = SamplingParams(temperature=1.0, entropy=entropy)
        told = context(PROMPT, entropy + 1, sampling)
        found = enumerate_(drafter, told, Draft(np.empty(0, np.int32)), plan(branches=3, k=1))
        branch = found.branches[1]
        assert branch.draft.laws is not None
        ids, probs = branch.draft.laws.at(0)
        law[ids] = probs
        counts[branch.draft.tokens[0]] += 1
    assert counts[law == 0].sum() == 0
    assert np.abs(counts / runs - law).max() < 4 * np.sqrt(0.25 / runs)


def test_a_draft_survives_no_call_of_another_kind(make: Make) -> None:
    """A tier may draft and verify on one engine: what a verify pass leaves is no tail of a draft."""
    drafter, plain = make(), make()
    draft = propose(drafter, context(PROMPT, 1), 3)
    verifier = Verifier(drafter.engine, drafter.info(), 64)
    other = Draft(((draft.tokens + 1) % VOCAB).astype(np.int32))
    verifier.verify(context(PROMPT, 2), [other]).result(60)
    ids = np.concatenate([PROMPT, other.tokens[:1]])
    after_it = propose(drafter, context(ids, 3), 4)
    assert after_it.tokens.tolist() == propose(plain, context(ids, 3), 4).tokens.tolist()

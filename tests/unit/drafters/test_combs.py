"""Combs: the chain is the one that would have been drafted anyway, and its siblings are the next best."""

from __future__ import annotations

import numpy as np
import pytest

from actors.drafters.model import ModelDrafter
from actors.messages import AheadPlan, Draft, DraftShape, Ids
from actors.sampling.params import SamplingParams
from tests.unit.drafters.conftest import COUPLED, GREEDY, PROMPT, REJECTION, Make, context

MODES = pytest.mark.parametrize("sampling", [GREEDY, COUPLED, REJECTION], ids=["greedy", "coupled", "rejection"])


def propose(drafter: ModelDrafter, ids: Ids, round: int, shape: DraftShape, sampling: SamplingParams,
            name: str = "a") -> Draft:
    draft = drafter.propose(context(ids, round, sampling, name), shape).result(60)
    assert draft.error is None
    return draft


def chain_of(draft: Draft) -> list[int]:
    """The nodes that have children, and the last one: first children all the way."""
    assert draft.parents is not None
    nodes, node = [], -1
    while len(below := np.flatnonzero(draft.parents == node)):
        node = int(below[0])
        nodes.append(node)
    return nodes


@MODES
def test_every_token_of_the_chain_brings_its_siblings(make: Make, sampling: SamplingParams) -> None:
    draft = propose(make(), PROMPT, 1, DraftShape(4, siblings=2), sampling)
    assert draft.parents is not None
    assert len(draft.tokens) == 12
    chain = chain_of(draft)
    assert len(chain) == 4
    for node in [-1, *chain[:-1]]:
        below = draft.tokens[draft.parents == node]
        assert len(below) == len(set(below.tolist())) == 3
    if sampling is REJECTION:
        assert draft.laws is not None and draft.laws.num_tokens == 12
        for node in range(12):
            ids, probs = draft.laws.at(node)
            assert draft.tokens[node] in ids
            assert probs.sum() == pytest.approx(1.0, abs=1e-5)
    else:
        assert draft.laws is None


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_the_chain_of_a_comb_is_the_draft_without_siblings(make: Make, sampling: SamplingParams) -> None:
    comb = propose(make(), PROMPT, 1, DraftShape(5, siblings=1), sampling)
    chain = propose(make(), PROMPT, 1, DraftShape(5), sampling, "b")
    assert comb.tokens[chain_of(comb)].tolist() == chain.tokens.tolist()


def test_siblings_cost_no_rows(make: Make) -> None:
    comb, chain = make(), make()
    propose(comb, PROMPT, 1, DraftShape(5, siblings=3), GREEDY)
    propose(chain, PROMPT, 1, DraftShape(5), GREEDY, "b")
    assert comb.stats().num_rows == chain.stats().num_rows


def test_a_comb_is_not_made_of_a_chain_that_was_drafted_without_siblings(make: Make) -> None:
    drafter = make()
    chain = propose(drafter, PROMPT, 1, DraftShape(5), GREEDY)
    text = np.append(PROMPT, chain.tokens[:1]).astype(np.int32)
    comb = propose(drafter, text, 2, DraftShape(4, siblings=1), GREEDY)
    assert len(comb.tokens) == 8
    assert comb.tokens[chain_of(comb)].tolist() == chain.tokens[1:].tolist()


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_branches_may_be_combs_and_follow_combs(make: Make, sampling: SamplingParams) -> None:
    drafter, plain = make(), make()
    draft = propose(drafter, PROMPT, 1, DraftShape(3, siblings=1), sampling)
    plan = AheadPlan(DraftShape(4, siblings=1), 8, 2, 300, 600.0)
    found = drafter.enumerate(context(PROMPT, 2, sampling), draft, 7, plan).result(60)
    assert found.error is None and len(found.branches) == 8
    assert any(branch.node >= 0 and draft.parents is not None and branch.node not in chain_of(draft)
               for branch in found.branches)  # after a sibling was accepted
    for number, branch in enumerate(found.branches):
        path: list[int] = []
        node = branch.node
        while node >= 0:
            assert draft.parents is not None
            path.insert(0, node)
            node = int(draft.parents[node])
        text = np.concatenate([PROMPT, draft.tokens[path], [branch.token]]).astype(np.int32)
        after = propose(plain, text, number + 1, DraftShape(4), sampling, "b")
        assert branch.draft.tokens[chain_of(branch.draft)].tolist() == after.tokens.tolist()

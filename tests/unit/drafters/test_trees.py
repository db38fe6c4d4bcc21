"""Drafted trees: every node is what a chain after its path would be, and every law is that of the draw."""

from __future__ import annotations

import numpy as np
import pytest

from actors.drafters.model import ModelDrafter
from actors.messages import AheadPlan, Draft, DraftShape, Ids
from actors.sampling.params import SamplingParams
from tests.unit.drafters.conftest import COUPLED, GREEDY, PROMPT, REJECTION, Make, context

STATIC = DraftShape(3, widths=(3, 2, 2))
DYNAMIC = DraftShape(5, num_nodes=14)
EXACT = pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])


def propose(drafter: ModelDrafter, ids: Ids, round: int, shape: DraftShape, sampling: SamplingParams,
            name: str = "a") -> Draft:
    draft = drafter.propose(context(ids, round, sampling, name), shape).result(60)
    assert draft.error is None
    return draft


def paths(draft: Draft) -> list[list[int]]:
    """Nodes from the root to each node."""
    assert draft.parents is not None
    found: list[list[int]] = []
    for node, parent in enumerate(draft.parents.tolist()):
        assert -1 <= parent < node
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


def children(draft: Draft, node: int) -> list[int]:
    assert draft.parents is not None
    return np.flatnonzero(draft.parents == node).tolist()


@EXACT
@pytest.mark.parametrize("shape", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_the_first_child_of_a_node_is_what_a_chain_would_go_on_with(
    make: Make, shape: DraftShape, sampling: SamplingParams
) -> None:
    drafter, plain = make(), make()
    draft = propose(drafter, PROMPT, 1, shape, sampling)
    for node, path in enumerate([[], *paths(draft)], start=-1):
        below = children(draft, node)
        tokens = draft.tokens[below].tolist()
        assert len(set(tokens)) == len(tokens)
        if not below:
            continue
        text = np.concatenate([PROMPT, draft.tokens[path]]).astype(np.int32)
        after = propose(plain, text, node + 2, DraftShape(1), sampling, "b")
        assert tokens[0] == after.tokens[0]


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED, REJECTION], ids=["greedy", "coupled", "rejection"])
def test_a_static_tree_has_its_widths(make: Make, sampling: SamplingParams) -> None:
    draft = propose(make(), PROMPT, 1, STATIC, sampling)
    depth = [len(path) for path in paths(draft)]
    assert [depth.count(level) for level in (1, 2, 3)] == [3, 6, 12]
    assert all(len(children(draft, node)) == STATIC.widths[len(path)] for node, path in
               enumerate([[], *paths(draft)], start=-1) if len(path) < 3)


@EXACT
def test_a_dynamic_tree_keeps_its_number_of_nodes_and_no_longer_path(make: Make, sampling: SamplingParams) -> None:
    draft = propose(make(), PROMPT, 1, DYNAMIC, sampling)
    assert len(draft.tokens) == DYNAMIC.num_nodes
    assert max(map(len, paths(draft))) <= DYNAMIC.num_tokens


def test_a_sampled_tree_stays_within_its_nodes_and_siblings_are_drawn_without_replacement(make: Make) -> None:
    draft = propose(make(), PROMPT, 1, DYNAMIC, REJECTION)
    assert 5 <= len(draft.tokens) <= DYNAMIC.num_nodes
    assert draft.laws is not None
    assert draft.laws.num_tokens == len(draft.tokens)
    for node in range(-1, len(draft.tokens)):
        before: list[int] = []
        for child in children(draft, node):
            ids, probs = draft.laws.at(child)
            assert draft.tokens[child] in ids
            assert not set(before) & set(ids.tolist())
            assert probs.sum() == pytest.approx(1.0, abs=1e-5)
            before.append(int(draft.tokens[child]))


@EXACT
def test_a_call_after_a_tree_goes_on_from_the_path_that_was_accepted(make: Make, sampling: SamplingParams) -> None:
    drafter, plain = make(), make()
    draft = propose(drafter, PROMPT, 1, STATIC, sampling)
    path = paths(draft)[-1]
    text = np.concatenate([PROMPT, draft.tokens[path], [3]]).astype(np.int32)
    before = drafter.stats().num_rows
    again = propose(drafter, text, 2, DraftShape(1), sampling)
    assert drafter.stats().num_rows == before + 2  # the last node, which was never run, and the verifier's token
    assert again.tokens.tolist() == propose(plain, text, 1, DraftShape(1), sampling, "b").tokens.tolist()


@EXACT
@pytest.mark.parametrize("drafted", [STATIC, DYNAMIC, DraftShape(4)], ids=["static", "dynamic", "chain"])
@pytest.mark.parametrize("ahead", [DraftShape(3), STATIC, DYNAMIC], ids=["chains", "static", "dynamic"])
def test_branches_of_a_tree_are_what_would_have_been_proposed(
    make: Make, drafted: DraftShape, ahead: DraftShape, sampling: SamplingParams
) -> None:
    drafter, plain = make(kv_tokens=8192), make()
    draft = propose(drafter, PROMPT, 1, drafted, sampling)
    plan = AheadPlan(ahead, 10, 3, 300, 600.0)
    found = drafter.enumerate(context(PROMPT, 2, sampling), draft, 1, plan).result(60)
    assert found.error is None
    assert len(found.branches) == 10
    way = paths(draft) if draft.parents is not None else [list(range(i + 1)) for i in range(len(draft.tokens))]
    for number, branch in enumerate(found.branches):
        path = way[branch.node] if branch.node >= 0 else []
        text = np.concatenate([PROMPT, draft.tokens[path], [branch.token]]).astype(np.int32)
        expected = propose(plain, text, number, ahead, sampling, "b")
        assert branch.draft.tokens.tolist() == expected.tokens.tolist()
        assert (branch.draft.parents is None) == (expected.parents is None)
        if expected.parents is not None:
            assert branch.draft.parents is not None
            assert branch.draft.parents.tolist() == expected.parents.tolist()


def test_sampled_branches_of_a_tree_carry_laws(make: Make) -> None:
    drafter = make()
    draft = propose(drafter, PROMPT, 1, STATIC, REJECTION)
    plan = AheadPlan(STATIC, 6, 3, 300, 600.0)
    found = drafter.enumerate(context(PROMPT, 2, REJECTION), draft, 1, plan).result(60)
    assert len(found.branches) == 6
    for branch in found.branches:
        assert branch.draft.laws is not None
        assert branch.draft.laws.num_tokens == len(branch.draft.tokens) == 21


def test_closing_and_replacing_a_growing_tree_answers_it(make: Make) -> None:
    drafter = make()
    shape = DraftShape(40, num_nodes=60)
    first = drafter.propose(context(PROMPT, 1), shape)
    second = drafter.propose(context(PROMPT, 2), shape)
    drafter.close("a")
    assert isinstance(first.result(60), Draft)
    assert isinstance(second.result(60), Draft)

"""Trees: what is accepted, what follows it, and which inputs are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.messages import Laws, Origin
from actors.sampling import laws as law_tools
from actors.sampling.params import SamplingParams
from actors.sampling.processors import weigh
from actors.sampling.rows import LogitRows
from actors.sampling.tree import VerifiedTree, path_to, verify_tree
from actors.sampling.validate import BadDraft, BadLogits
from actors.sampling.verify import verify
from tests.unit.sampling.tables import PROMPT, Table, propose
from tests.unit.sampling.test_verify import ALL_MODES, BLOCK, COUPLED, GREEDY, REJECTION, ids
from tests.unit.sampling.trees import Tree, check_tree, eager, generate_with_trees, static

PENALISED = {"repetition_penalty": 1.4, "presence_penalty": 0.5, "min_tokens": 2, "eos_ids": (2,)}


def run(
    tokens: np.ndarray, parents: np.ndarray, logits: torch.Tensor, params: SamplingParams, laws: Laws | None = None,
    **how: Any,
) -> VerifiedTree:
    settings = {"tier": 1, "round": 0, "want_laws": False, "law_support": 0, **how}
    return verify_tree(tokens, parents, laws, LogitRows(logits), params, PROMPT, len(PROMPT), **settings)


@st.composite
def any_tree(draw: st.DrawFn) -> Tree:
    """Any tokens (foreign ids and duplicate siblings too) in any shape."""
    num_nodes = draw(st.integers(0, 12))
    parents = [draw(st.integers(-1, i - 1)) for i in range(num_nodes)]
    tokens = draw(st.lists(st.integers(0, 5), min_size=num_nodes, max_size=num_nodes))
    return Tree(list(PROMPT), tokens, parents, [None] * num_nodes)


def alone(model: Table, params: SamplingParams, num_tokens: int) -> list[int]:
    """What the model says without drafts."""
    text = list(PROMPT)
    for round_ in range(num_tokens):
        text += check_tree(model, params, Tree(list(text)), round_).tokens.tolist()
    return text[len(PROMPT) :]


@pytest.mark.exactness
@settings(max_examples=150, deadline=None)
@given(tree=any_tree(), seed=st.integers(0, 5), penalised=st.booleans(), coupled=st.booleans())
def test_greedy_and_seeded_text_never_depends_on_the_tree(
    tree: Tree, seed: int, penalised: bool, coupled: bool
) -> None:
    params = replace(COUPLED if coupled else GREEDY, **(PENALISED if penalised else {}))
    params = replace(params, seed=seed if coupled else None)
    model = Table(seed, 5)
    got = check_tree(model, params, tree, 0)
    assert got.tokens.tolist() == alone(model, params, len(got.tokens))


@pytest.mark.exactness
@settings(max_examples=150, deadline=None)
@given(tree=any_tree(), seed=st.integers(0, 5), mode=st.sampled_from([GREEDY, COUPLED, REJECTION, BLOCK]))
def test_a_verdict_is_a_path_of_the_tree_and_one_token(tree: Tree, seed: int, mode: SamplingParams) -> None:
    got = check_tree(Table(seed, 5), replace(mode, entropy=seed), tree, 0)
    assert len(got.tokens) == got.num_accepted + 1 == len(got.path) + 1
    end = got.path[-1] if got.path else -1
    assert list(got.path) == path_to(np.array(tree.parents, np.int32), end)
    assert got.tokens[:-1].tolist() == [tree.tokens[node] for node in got.path]
    assert 0 <= got.tokens[-1] < 5
    following = [tree.tokens[i] for i, parent in enumerate(tree.parents) if parent == end]
    assert got.last is (Origin.PLAIN if not tree.tokens else Origin.RECOVERED if following else Origin.BONUS)
    assert got.tokens[-1] not in following  # it would have been accepted: drafts without laws


@pytest.mark.exactness
@pytest.mark.parametrize("mode", [GREEDY, COUPLED, REJECTION], ids=["greedy", "coupled", "rejection"])
def test_a_chain_told_as_a_tree_is_verified_as_the_chain(mode: SamplingParams) -> None:
    draft, model = Table(3, 6), Table(4, 6)
    for entropy in range(60):
        params = replace(mode, entropy=entropy, seed=None if mode.seed is None else entropy)
        drafted = propose(draft, params, PROMPT, 4, 0, 0)
        logits = LogitRows(model.rows(PROMPT, drafted.tokens.tolist()))
        how = {"params": params, "history_ids": PROMPT, "num_prompt_tokens": 2, "tier": 1, "round": 0,
               "want_laws": False, "law_support": 0}  # fmt: skip
        chain = verify(drafted.tokens, drafted.laws, logits, **how)  # type: ignore[arg-type]
        parents = np.arange(-1, len(drafted.tokens) - 1, dtype=np.int32)
        tree = verify_tree(drafted.tokens, parents, drafted.laws, logits, **how)  # type: ignore[arg-type]
        assert tree.tokens.tolist() == chain.tokens.tolist()
        assert (tree.num_accepted, tree.last) == (chain.num_accepted, chain.last)


@ALL_MODES
def test_without_parents_a_draft_is_a_chain(params: SamplingParams) -> None:
    draft, model = Table(3, 6), Table(4, 6)
    for entropy in range(30):
        one = replace(params, entropy=entropy)
        drafted = propose(draft, one, PROMPT, 4, 0, 0)
        logits = LogitRows(model.rows(PROMPT, drafted.tokens.tolist()))
        chain = verify(drafted.tokens, drafted.laws, logits, one, PROMPT, 2, 1, 0, False, 0)
        tree = verify_tree(drafted.tokens, None, drafted.laws, logits, one, PROMPT, 2, 1, 0, False, 0)
        assert tree.tokens.tolist() == chain.tokens.tolist()
        assert tree.path == tuple(range(chain.num_accepted))


@pytest.mark.exactness
@pytest.mark.parametrize("grow", [static((2, 2)), static((3, 1, 1)), eager(7, 3)])
@pytest.mark.parametrize("params", [GREEDY, COUPLED, replace(COUPLED, **PENALISED), replace(GREEDY, **PENALISED)])
def test_many_rounds_give_the_text_of_the_target_alone(grow: Any, params: SamplingParams) -> None:
    target = Table(31, 8)
    wanted = tuple(alone(target, params, 20))
    for draft_seed in (31, 32):
        text, accepted = generate_with_trees(grow, Table(draft_seed, 8), target, params, 20)
        assert text == wanted
    assert accepted > 0


@ALL_MODES
def test_rows_off_the_path_are_never_looked_at(params: SamplingParams) -> None:
    certain = torch.tensor([-torch.inf, 9.0, -torch.inf])
    bad = torch.full((3,), torch.nan)
    tokens, parents = ids(0, 1, 2, 1, 0), ids(-1, -1, 0, 1, 1)
    laws = None
    if params.temperature > 0 and params.seed is None:
        laws = law_tools.build([(ids(0, 1, 2), np.full(3, 1 / 3, np.float32))] * 5)
    got = run(tokens, parents, torch.stack([certain, bad, certain, bad, certain, bad]), params, laws)
    assert (got.tokens.tolist(), got.path, got.last) == ([1, 1, 1], (1, 3), Origin.BONUS)


@ALL_MODES
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_logits_on_the_path_are_an_error(params: SamplingParams, bad: float) -> None:
    logits = torch.zeros(3, 5)
    logits[0, 3] = bad
    with pytest.raises(BadLogits):
        run(ids(3, 4), ids(-1, -1), logits, params)


@ALL_MODES
@pytest.mark.parametrize("token", [5, 99, -1, 2**31 - 1])
def test_ids_outside_the_vocabulary_are_never_accepted(params: SamplingParams, token: int) -> None:
    for laws in (None, law_tools.build([(ids(1, token), np.array([0.1, 0.9], np.float32))] * 2)):
        for entropy in range(20):
            got = run(ids(token, token), ids(-1, -1), torch.randn(3, 5), replace(params, entropy=entropy), laws)
            assert got.num_accepted == 0
            assert 0 <= got.tokens[0] < 5


@ALL_MODES
def test_an_empty_tree_is_a_plain_step(params: SamplingParams) -> None:
    none = np.empty(0, np.int32)
    got = run(none, none, torch.randn(1, 5), params)
    assert (len(got.tokens), got.num_accepted, got.last, got.path) == (1, 0, Origin.PLAIN, ())


@ALL_MODES
def test_parents_that_make_no_tree_are_refused(params: SamplingParams) -> None:
    for parents in (ids(0, 0), ids(-1, 1), ids(-2, 0), ids(-1, 5)):
        with pytest.raises(BadDraft, match="name an earlier token"):
            run(ids(1, 1), parents, torch.zeros(3, 5), params)
    for parents in (ids(-1), ids(-1, 0, 1), np.array([[-1, 0]], np.int32)):
        with pytest.raises(BadDraft, match="send one each"):
            run(ids(1, 1), parents, torch.zeros(3, 5), params)
    with pytest.raises(ValueError, match="3 rows of logits"):
        run(ids(1, 1), ids(-1, 0), torch.zeros(2, 5), params)


def test_laws_that_cannot_be_the_nodes_are_refused() -> None:
    half = (ids(0, 1), np.array([0.5, 0.5], np.float32))
    certain = torch.tensor([[0.0, -torch.inf, -torch.inf]] * 3)
    for params in (REJECTION, BLOCK):
        with pytest.raises(BadDraft, match="send one each"):
            run(ids(0, 1), ids(-1, -1), certain, params, law_tools.build([half]))
        with pytest.raises(BadDraft, match="outside the law"):
            run(ids(2, 1), ids(-1, -1), certain, params, law_tools.build([half] * 2))
        nan = (ids(0, 1), np.array([0.5, np.nan], np.float32))
        with pytest.raises(BadDraft, match="not a distribution"):
            run(ids(0, 1), ids(-1, -1), certain, params, law_tools.build([nan, half]))


@pytest.mark.exactness
@pytest.mark.parametrize("params", [REJECTION, BLOCK], ids=["rejection", "block"])
@pytest.mark.parametrize("support", [0, 2])
def test_a_middle_tier_returns_the_law_of_each_token(params: SamplingParams, support: int) -> None:
    draft, middle = Table(73, 5), Table(74, 5)
    longest = 0
    for entropy in range(100):
        one = replace(params, entropy=entropy)
        tree = static((2, 2))(draft, one, PROMPT, 0, 0)
        got = check_tree(middle, one, tree, 1, want_laws=True, support=support)
        assert got.laws is not None
        assert got.laws.num_tokens == len(got.tokens)
        longest = max(longest, len(got.tokens))
        for i, token in enumerate(got.tokens):
            history = [*PROMPT, *got.tokens[:i]]
            expected = law_tools.truncate(
                weigh(LogitRows(middle.logits(history)[None]), 0, one, history, len(PROMPT)), support
            )
            support_ids, probs = got.laws.at(i)
            assert token in support_ids
            np.testing.assert_array_equal(support_ids, expected[0])
            np.testing.assert_array_equal(probs, expected[1])
    assert longest == 3


def test_logprobs_are_of_the_rows_on_the_path() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0], [9.0, 9.0, 9.0], [7.0, 0.0, 1.0]])
    got = run(ids(0, 1), ids(-1, -1), logits, replace(GREEDY, num_logprobs=1))
    assert (got.tokens.tolist(), got.path) == ([1, 0], (1,))
    assert got.logprobs is not None
    rows = torch.log_softmax(logits, -1)
    wanted = [float(rows[0, 1]), float(rows[2, 0])]
    assert [entry.logprob for entry in got.logprobs] == pytest.approx(wanted, abs=1e-6)


@ALL_MODES
def test_a_retried_call_repeats_itself(params: SamplingParams) -> None:
    draft, model = Table(71, 8), Table(72, 8)
    for entropy in range(20):
        one = replace(params, entropy=entropy)
        tree = static((2, 2))(draft, one, PROMPT, 0, 0)
        assert check_tree(model, one, tree, 1).tokens.tolist() == check_tree(model, one, tree, 1).tokens.tolist()

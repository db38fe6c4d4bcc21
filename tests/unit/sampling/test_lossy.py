"""Lossy policies keep what their papers say, count what exact rules refuse, and are off by themselves."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.messages import Ids, Laws, Origin
from actors.sampling import laws as law_tools
from actors.sampling.lossy import entropy, falls_back, judged, threshold, verify_lossy
from actors.sampling.params import SamplingParams
from actors.sampling.policies import POLICIES, BigLittle, LossyPolicy, TypicalAcceptance
from actors.sampling.processors import weigh
from actors.sampling.rows import LogitRows
from actors.sampling.tree import VerifiedTree, verify_tree
from actors.sampling.validate import BadDraft, BadLogits
from tests.unit.sampling.tables import PROMPT, Table, propose
from tests.unit.sampling.test_verify import BLOCK, COUPLED, GREEDY, REJECTION
from tests.unit.sampling.trees import Tree

MODEL = Table(3, 6)
EAGER = TypicalAcceptance(epsilon=1e-6, delta=1e-6)  # keeps whatever has a probability
STRICT = TypicalAcceptance(epsilon=1.0, delta=1.0)


def judge(
    tokens: list[int], parents: list[int] | None, params: SamplingParams, logits: torch.Tensor | None = None,
    laws: Laws | None = None, round: int = 0,
) -> VerifiedTree:
    """Of a draft after PROMPT over MODEL."""
    tree = Tree(list(PROMPT), tokens, parents if parents is not None else list(range(-1, len(tokens) - 1)))
    rows = LogitRows(tree.rows(MODEL) if logits is None else logits)
    ids: Ids = np.array(tokens, np.int32)
    told = None if parents is None else np.array(parents, np.int32)
    return verify_lossy(ids, told, laws, rows, params, PROMPT, len(PROMPT), 1, round)


def law(prefix: list[int], params: SamplingParams) -> np.ndarray:
    """p after `prefix`."""
    weights = weigh(LogitRows(MODEL.logits(prefix)[None]), 0, judged(params), prefix, len(PROMPT))
    return weights.scatter(weights.probabilities())


@st.composite
def any_tree(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Any tokens, foreign ids and duplicate siblings among them, in any shape."""
    size = draw(st.integers(0, 10))
    parents = [draw(st.integers(-1, i - 1)) for i in range(size)]
    return draw(st.lists(st.integers(-1, 7), min_size=size, max_size=size)), parents


policies = st.builds(TypicalAcceptance, st.floats(0.01, 1), st.floats(0.01, 1)) | st.builds(
    BigLittle, st.floats(0, 1), st.floats(0.1, 9)
)
modes = st.sampled_from([GREEDY, COUPLED, REJECTION, BLOCK])


def test_settings_are_exact_unless_they_name_a_policy() -> None:
    assert SamplingParams().lossy is None
    assert {policy.policy: policy for policy in POLICIES.values()} == POLICIES
    with pytest.raises(ValueError, match="no lossy policy"):
        judge([1], None, GREEDY)


def test_thresholds_are_the_papers() -> None:
    even, sure = np.full(8, 1 / 8), np.array([0.97, 0.01, 0.01, 0.01])
    assert entropy(even) == pytest.approx(math.log(8))
    assert entropy(np.array([1.0, 0.0])) == 0.0
    policy = TypicalAcceptance(0.09, 0.3)
    assert threshold(policy, even) == pytest.approx(0.3 / 8)  # unsure: delta * exp(-H)
    assert threshold(policy, sure) == 0.09  # sure: epsilon
    assert threshold(BigLittle(0.5, 3.0), even) == pytest.approx(math.exp(-3.0))


@settings(max_examples=150, deadline=None)
@given(tree=any_tree(), policy=policies, mode=modes, round=st.integers(0, 9))
def test_exactly_what_reaches_the_threshold_is_kept_and_the_longest_such_path_wins(
    tree: tuple[list[int], list[int]], policy: LossyPolicy, mode: SamplingParams, round: int
) -> None:
    tokens, parents = tree
    params = replace(mode, lossy=policy)
    found = judge(tokens, parents, params, round=round)

    def chances(node: int) -> list[tuple[float, float]]:
        """(probability, threshold) of each token up to `node`."""
        if node < 0:
            return []
        before = chances(parents[node])
        prefix = [*PROMPT, *text(parents[node])]
        if any(not 0 <= token < 6 for token in prefix):
            return [*before, (0.0, 1.0)]
        p = law(prefix, params)
        token = tokens[node]
        return [*before, (float(p[token]) if 0 <= token < 6 else 0.0, threshold(policy, p))]

    def text(node: int) -> list[int]:
        return [] if node < 0 else [*text(parents[node]), tokens[node]]

    kept = [node for node in range(len(tokens)) if all(chance > least for chance, least in chances(node))]
    longest = max((len(text(node)) for node in kept), default=0)
    assert found.num_accepted == len(found.path) == longest
    assert all(node in kept for node in found.path)
    rivals = [node for node in kept if len(text(node)) == longest]
    best = max((math.prod(chance for chance, _ in chances(node)) for node in rivals), default=1.0)
    end = found.path[-1] if found.path else -1
    assert math.prod(c for c, _ in chances(end)) == pytest.approx(best)
    assert found.tokens[:-1].tolist() == text(end)
    assert 0 <= found.tokens[-1] < 6
    assert 0 <= found.num_relaxed <= found.num_accepted
    assert found.laws is None


@settings(max_examples=100, deadline=None)
@given(tokens=st.lists(st.integers(0, 5), max_size=6), coupled=st.booleans())
def test_what_the_exact_rule_keeps_is_not_counted_as_relaxed(tokens: list[int], coupled: bool) -> None:
    params = COUPLED if coupled else GREEDY
    lossy = judge(tokens, None, replace(params, lossy=EAGER))
    logits = LogitRows(MODEL.rows(PROMPT, tokens))
    ids = np.array(tokens, np.int32)
    exact = verify_tree(ids, None, None, logits, params, PROMPT, len(PROMPT), 1, 0, False, 0)
    assert lossy.num_accepted == len(tokens)
    assert lossy.num_relaxed <= len(tokens) - exact.num_accepted
    assert (lossy.num_relaxed == 0) == (exact.num_accepted == len(tokens))
    if lossy.num_relaxed == 0:
        assert lossy.tokens.tolist() == exact.tokens.tolist()


@pytest.mark.parametrize("mode", [REJECTION, BLOCK])
def test_sampled_drafts_are_counted_against_the_same_dice(mode: SamplingParams) -> None:
    relaxed = refused = 0
    for entropy_ in range(200):
        params = replace(mode, entropy=entropy_)
        drafted = propose(Table(8, 6), params, list(PROMPT), 1, 0, 0)
        tokens, laws = drafted.tokens, drafted.laws
        found = judge(tokens.tolist(), None, replace(params, lossy=EAGER), laws=laws)
        rows = LogitRows(MODEL.rows(PROMPT, tokens.tolist()))
        token_wise = replace(params, block_verification=False)
        exact = verify_tree(tokens, None, laws, rows, token_wise, PROMPT, len(PROMPT), 1, 0, False, 0)
        assert found.num_relaxed == 1 - exact.num_accepted
        relaxed, refused = relaxed + found.num_relaxed, refused + 1 - exact.num_accepted
    assert 0 < relaxed == refused < 200


def test_a_strict_policy_keeps_nothing_and_the_own_token_is_the_modes() -> None:
    greedy = judge([1, 2], None, replace(GREEDY, lossy=STRICT))
    assert (greedy.num_accepted, greedy.last) == (0, Origin.RECOVERED)
    assert greedy.tokens.tolist() == [int(MODEL.logits(PROMPT).argmax())]
    assert judge([], None, replace(GREEDY, lossy=EAGER)).last is Origin.PLAIN
    assert judge([1], None, replace(GREEDY, lossy=EAGER)).last is Origin.BONUS


def test_the_own_token_of_a_sampled_request_follows_the_targets_law() -> None:
    counts = np.zeros(6)
    for entropy_ in range(3000):
        counts[judge([], None, replace(REJECTION, entropy=entropy_, lossy=EAGER)).tokens[0]] += 1
    p = law(list(PROMPT), REJECTION)
    expected = 3000 * p[p > 0]
    chi_square = float(((counts[p > 0] - expected) ** 2 / expected).sum())
    assert chi_square < 25.0  # 5 degrees of freedom: 1e-4


@pytest.mark.parametrize("policy", [EAGER, BigLittle(rollback=9.0)])
def test_masked_and_foreign_ids_are_never_kept(policy: LossyPolicy) -> None:
    masked = replace(GREEDY, lossy=policy, min_tokens=9, eos_ids=(2,))
    assert judge([2], None, masked).num_accepted == 0
    assert judge([77], None, replace(GREEDY, lossy=policy)).num_accepted == 0
    assert judge([-1], None, replace(GREEDY, lossy=policy)).num_accepted == 0


def test_broken_laws_and_logits_are_told_as_by_the_exact_rule() -> None:
    laws = law_tools.build([(np.array([1], np.int32), np.array([1.0], np.float32))])
    with pytest.raises(BadDraft):
        judge([1, 2], None, replace(REJECTION, lossy=EAGER), laws=laws)
    with pytest.raises(BadLogits):
        judge([1], None, replace(GREEDY, lossy=EAGER), logits=torch.full((2, 6), torch.nan))


@pytest.mark.parametrize(("params", "falls"), [
    ({"lossy": None}, False),
    ({"lossy": TypicalAcceptance()}, False),
    ({"lossy": BigLittle(fallback=0.0)}, False),
    ({"lossy": BigLittle(fallback=1.0)}, True),
    ({"lossy": BigLittle(fallback=0.5)}, False),
    ({"lossy": BigLittle(fallback=0.7)}, True),
    ({"lossy": BigLittle(fallback=0.7), "temperature": 0.3}, False),  # a sharper law is a surer one
])
def test_only_a_big_little_draft_ends_where_the_small_model_is_unsure(params: dict[str, Any], falls: bool) -> None:
    row = torch.log(torch.tensor([[0.6, 0.3, 0.1]]))
    assert falls_back(LogitRows(row), 0, SamplingParams(**params), PROMPT, 2) is falls

"""Children of a node: which tokens, from which laws, and how sure the drafter is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.sampling import laws as law_tools
from actors.sampling.draw import Drawn, coupled_best, draw
from actors.sampling.noise import Purpose, gumbel, stream
from actors.sampling.params import SamplingParams
from actors.sampling.processors import LogWeights, adjusted, weigh
from actors.sampling.rows import LogitRows
from actors.sampling.siblings import confidences, draw_children
from actors.sampling.validate import BadLogits
from tests.unit.sampling.tables import PROMPT
from tests.unit.sampling.test_verify import ALL_MODES, BLOCK, COUPLED, GREEDY, REJECTION


def children(row: torch.Tensor, params: SamplingParams, count: int, support: int = 0, entropy: int = 0) -> list[Drawn]:
    rng = stream(entropy, Purpose.DRAFT, 0, 0)
    return draw_children(LogitRows(row[None]), 0, params, PROMPT, len(PROMPT), rng, support, count)


def some_row(seed: int, size: int = 12, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


@ALL_MODES
@pytest.mark.parametrize("count", [1, 2, 5, 12, 40])
def test_siblings_differ_and_there_are_as_many_as_the_law_has(params: SamplingParams, count: int) -> None:
    row = some_row(1)
    row[[3, 7]] = -torch.inf
    tokens = [child.token for child in children(row, params, count)]
    assert len(tokens) == len(set(tokens)) == min(count, 10)
    assert not {3, 7} & set(tokens)


@ALL_MODES
def test_the_only_child_is_what_a_chain_draws(params: SamplingParams) -> None:
    for entropy in range(20):
        row = LogitRows(some_row(entropy)[None])
        one = draw(row, 0, params, PROMPT, 2, stream(entropy, Purpose.DRAFT, 0, 0), 5)
        for count in (1, 3):
            first = children(some_row(entropy), params, count, 5, entropy)[0]
            assert first.token == one.token
            assert (first.law is None) == (one.law is None)
            if first.law is not None and one.law is not None:
                np.testing.assert_array_equal(first.law[0], one.law[0])
                np.testing.assert_array_equal(first.law[1], one.law[1])


@pytest.mark.exactness
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1000), support=st.sampled_from([0, 1, 3, 6]), count=st.integers(2, 8))
def test_each_sibling_has_the_law_of_what_the_earlier_ones_left(seed: int, support: int, count: int) -> None:
    drawn = children(some_row(seed), REJECTION, count, support, seed)
    weighed = weigh(LogitRows(some_row(seed)[None]), 0, REJECTION, PROMPT, 2)
    ids, probs = law_tools.truncate(weighed, support)
    gone: list[int] = []
    for child in drawn:
        assert child.law is not None
        left = ~np.isin(ids, gone)
        np.testing.assert_array_equal(child.law[0], ids[left])
        np.testing.assert_allclose(child.law[1], probs[left] / probs[left].sum(dtype=np.float64), rtol=1e-5)
        assert child.law[1].dtype == np.float32
        assert child.token in child.law[0]
        gone.append(child.token)


def test_siblings_are_drawn_as_often_as_their_laws_say() -> None:
    row = torch.tensor([0.5, 0.3, 0.2]).log()
    pairs = [tuple(child.token for child in children(row, REJECTION, 2, 0, i)) for i in range(4000)]
    for (first, second), prob in {(0, 1): 0.3, (0, 2): 0.2, (1, 0): 3 / 14, (2, 1): 0.075}.items():
        assert pairs.count((first, second)) / 4000 == pytest.approx(prob, abs=0.03)


def test_greedy_siblings_are_the_best_after_adjustments() -> None:
    params = replace(GREEDY, logit_bias=((4, 3.0),), repetition_penalty=1.5, min_tokens=3, eos_ids=(2,))
    for seed in range(20):
        row = adjusted(some_row(seed).numpy(), params, PROMPT, 2)
        best = np.argsort(-row, kind="stable")[:4].tolist()
        assert [child.token for child in children(some_row(seed), params, 4)] == best


@pytest.mark.exactness
@pytest.mark.parametrize("scale", [0.1, 2.0, 15.0])
@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_coupled_siblings_are_the_largest_of_log_q_plus_noise(scale: float, count: int) -> None:
    rng = np.random.default_rng(4)
    for position in range(10):
        logs = (rng.standard_normal(3000) * scale).astype(np.float32)
        logs -= logs.max()
        logs[rng.integers(0, 3000, 50)] = -np.inf
        plain = np.argsort(-(logs.astype(np.float64) + gumbel(7, position, 3000)), kind="stable")[:count].tolist()
        assert coupled_best(LogWeights(3000, None, logs), COUPLED, position, count) == plain
        ids = np.flatnonzero(logs > -np.inf)[::3]
        some = logs[ids].astype(np.float64) + gumbel(7, position, 3000)[ids]
        assert coupled_best(LogWeights(3000, ids, logs[ids]), COUPLED, position, count) == ids[
            np.argsort(-some, kind="stable")[:count]
        ].tolist()


def test_coupled_siblings_are_never_masked_ids() -> None:
    logs = np.full(3000, -np.inf, np.float32)
    logs[[5, 17, 2900]] = 0.0
    assert sorted(coupled_best(LogWeights(3000, None, logs), COUPLED, 3, 10)) == [5, 17, 2900]


@ALL_MODES
def test_confidences_are_the_drafters_probabilities(params: SamplingParams) -> None:
    row = some_row(3)
    drawn = children(row, replace(params, temperature=params.temperature and 0.7), 4)
    sampled = params.temperature > 0 and params.seed is None
    wanted = torch.softmax(row.double() / (0.7 if sampled else 1.0), -1)
    got = confidences(LogitRows(row[None]), 0, drawn)
    assert got == pytest.approx([float(wanted[child.token]) for child in drawn], rel=1e-5)
    assert confidences(LogitRows(row[None]), 0, []) == []


@ALL_MODES
def test_no_children_come_from_bad_logits(params: SamplingParams) -> None:
    for bad in (torch.tensor([0.0, torch.nan, 1.0]), torch.full((3,), -torch.inf)):
        with pytest.raises(BadLogits):
            children(bad, params, 2)


def test_children_need_a_count_and_in_the_rejection_modes_noise() -> None:
    row = LogitRows(torch.zeros(1, 5))
    for params in (REJECTION, BLOCK):
        with pytest.raises(ValueError, match="needs noise"):
            draw_children(row, 0, params, PROMPT, 2, None, 0, 2)
    with pytest.raises(ValueError, match="at least one"):
        draw_children(row, 0, GREEDY, PROMPT, 2, None, 0, 0)

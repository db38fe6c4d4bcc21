"""Processors: each setting does what its definition says, and every row stays a law."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.sampling.params import SamplingParams
from actors.sampling.processors import adjusted, adjusts_logits, process
from actors.sampling.ranking import top_ids
from actors.sampling.validate import BadLogits


def support(log_probs: torch.Tensor) -> list[int]:
    return torch.isfinite(log_probs).nonzero().squeeze(-1).tolist()


def adjust(row: torch.Tensor, params: SamplingParams, history: list[int], num_prompt: int) -> np.ndarray:
    return adjusted(row.numpy(), params, history, num_prompt)


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_of_all_seen_ids() -> None:
    row = torch.tensor([2.0, -2.0, 4.0, 1.0])
    got = adjust(row, SamplingParams(repetition_penalty=2.0), [0, 1, 1, 2], 2)
    assert got.tolist() == [1.0, -4.0, 2.0, 1.0]


def test_presence_and_frequency_penalties_see_the_output_only() -> None:
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    got = adjust(torch.zeros(4), params, [0, 0, 1, 2, 2], 2)
    assert got.tolist() == [0.0, -0.75, -1.0, 0.0]


def test_min_tokens_masks_end_ids_until_reached() -> None:
    params = SamplingParams(min_tokens=2, eos_ids=(1, 50))
    assert adjust(torch.zeros(3), params, [0, 0], 1)[1] == -math.inf
    assert adjust(torch.zeros(3), params, [0, 0, 0], 1)[1] == 0.0


def test_bias_adds_and_skips_ids_that_the_vocabulary_lacks() -> None:
    params = SamplingParams(logit_bias=((1, 2.5), (7, 9.0)), repetition_penalty=1.1)
    assert adjust(torch.zeros(3), params, [70, 1], 1).tolist() == pytest.approx([0.0, 2.5 / 1.1, 0.0])


def test_settings_leave_the_row_alone() -> None:
    row = torch.randn(5)
    before = row.clone()
    assert not adjusts_logits(SamplingParams(min_tokens=3, eos_ids=(1,)), 3)
    assert adjusts_logits(SamplingParams(min_tokens=3, eos_ids=(1,)), 2)
    params = SamplingParams(temperature=0.5, top_k=2, top_p=0.9, min_p=0.1, presence_penalty=1.0)
    process(row, params, [0, 1], 1)
    assert torch.equal(row, before)


@pytest.mark.exactness
def test_ties_at_the_cut_go_to_the_smaller_ids() -> None:
    row = torch.tensor([1.0, 3.0, 1.0, 1.0, 3.0])
    assert top_ids(row.numpy(), 3).tolist() == [1, 4, 0]
    assert support(process(row, SamplingParams(temperature=1.0, top_k=3), [], 0)) == [0, 1, 4]
    assert support(process(torch.zeros(4), SamplingParams(temperature=1.0, top_p=0.4), [], 0)) == [0, 1]


def test_top_p_keeps_the_fewest_tokens_that_reach_it_and_min_p_is_relative_to_the_best() -> None:
    row = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert support(process(row, SamplingParams(temperature=1.0, top_p=0.7), [], 0)) == [0, 1]
    assert support(process(row, SamplingParams(temperature=1.0, top_p=0.81), [], 0)) == [0, 1, 2]
    assert support(process(row, SamplingParams(temperature=1.0, min_p=0.2), [], 0)) == [0, 1, 2]


@pytest.mark.exactness
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.1, 1.0, 8.0]),
    temperature=st.sampled_from([0.3, 1.0, 1.7]), top_k=st.sampled_from([0, 1, 40, 3000]),
    top_p=st.sampled_from([0.3, 0.95, 1.0]), min_p=st.sampled_from([0.0, 0.02]),
)
def test_a_law_is_that_of_the_plain_definition(
    seed: int, scale: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Softmax and full sorts in float64; the last token of a cut may fall either way by rounding."""
    row = torch.randn(5000, generator=torch.Generator().manual_seed(seed)) * scale
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    got = process(row, params, [], 0).double().exp()
    probs, order = torch.softmax(row.double() / temperature, -1).sort(descending=True, stable=True)
    if top_k:
        probs[top_k:] = 0.0
    if top_p < 1.0:
        mass = probs / probs.sum()
        probs[mass.cumsum(0) - mass >= top_p] = 0.0
    probs[probs < min_p * probs[0]] = 0.0
    wanted = torch.zeros(5000, dtype=torch.float64).scatter(0, order, probs / probs.sum())
    assert float((got - wanted).abs().max()) < 1e-6 + float(probs[probs > 0].min() / probs.sum())
    least = 1e-30  # what float32 cannot hold may have no weight at all
    assert int(((got > 0) & (wanted == 0) | (got == 0) & (wanted > least)).sum()) <= 1


@settings(max_examples=150, deadline=None)
@given(
    row=st.lists(st.floats(-60, 60, width=32) | st.just(-math.inf), min_size=2, max_size=9),
    temperature=st.sampled_from([1e-6, 0.3, 1.0, 100.0]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.0, 1e-9, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    penalty=st.sampled_from([0.5, 1.0, 1.7]),
)
def test_any_settings_leave_a_normalised_law_with_at_least_one_token(
    row: list[float], temperature: float, top_k: int, top_p: float, min_p: float, penalty: float
) -> None:
    if not any(math.isfinite(value) for value in row):
        row[0] = 0.0
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty
    )
    got = process(torch.tensor(row), params, [0, 1, 400], 1)
    assert not torch.isnan(got).any()
    assert float(got.double().exp().sum()) == pytest.approx(1.0, abs=1e-5)
    assert len(support(got)) >= 1
    assert set(support(got)) <= {i for i, value in enumerate(row) if math.isfinite(value)}


def test_temperature_zero_is_a_point_mass_on_the_first_best() -> None:
    assert support(process(torch.tensor([0.0, 2.0, 2.0]), SamplingParams(), [], 0)) == [1]


@pytest.mark.parametrize("row", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_bad_rows_raise(row: list[float]) -> None:
    with pytest.raises(BadLogits):
        process(torch.tensor(row), SamplingParams(temperature=1.0), [], 0)


def test_masking_every_token_raises() -> None:
    params = SamplingParams(temperature=1.0, min_tokens=5, eos_ids=(0, 1))
    with pytest.raises(BadLogits, match="masked"):
        process(torch.zeros(2), params, [], 0)


@pytest.mark.exactness
def test_padding_does_not_change_the_law_of_real_ids() -> None:
    row = torch.randn(50)
    padded = torch.cat([row, torch.full((14,), -torch.inf)])
    params = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.2)
    history = np.array([1, 2, 60], np.int32)
    a, b = (process(one, params, history, 1) for one in (row, padded))
    assert support(a) == support(b)
    assert torch.allclose(a[support(a)], b[support(b)], atol=1e-6)

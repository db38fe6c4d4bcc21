"""The law of a round, computed without sampling error: committed text follows the target alone.

A round is lossless if its tokens, continued by the target, have the target's law; by induction any number
of rounds then has.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actors.messages import Probs
from actors.sampling import draw as draw_module
from actors.sampling import verify as verify_module
from actors.sampling.laws import Floats
from actors.sampling.params import SamplingParams
from actors.sampling.processors import process
from tests.unit.sampling.branching import exact_law
from tests.unit.sampling.tables import PROMPT, Law, Table, check, joint_law, one_round, propose

pytestmark = pytest.mark.exactness

TOLERANCE = 2e-6  # float32 log-probabilities
REJECTION = SamplingParams(temperature=1.0, block_verification=False)
BLOCK = SamplingParams(temperature=1.0)
MODES = pytest.mark.parametrize("mode", [REJECTION, BLOCK], ids=["rejection", "block"])

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.15},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "output_penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.4},
    "bias": {"logit_bias": ((2, 1.5), (90, 3.0))},
    "min_tokens": {"min_tokens": 1, "eos_ids": (3,)},
    "all": {"temperature": 0.8, "top_k": 3, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.2},
}


def error_of_round(ladder: list[Table], params: SamplingParams, num_tokens: int = 3, **how: Any) -> float:
    """Largest error in the joint law of `num_tokens` tokens: one round, continued by the target."""

    def run() -> tuple[int, ...]:
        verdict, _ = one_round(ladder, params, PROMPT, itertools.count(), **how)
        return tuple(verdict.tokens.tolist())

    start = exact_law(run)
    assert sum(start.values()) == pytest.approx(1.0, abs=1e-9)
    got = joint_law(ladder[-1], params, num_tokens, start)
    wanted = joint_law(ladder[-1], params, num_tokens)
    return max(abs(got.get(text, 0.0) - wanted.get(text, 0.0)) for text in {*got, *wanted})


@MODES
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("support", [0, 2])
def test_a_round_is_lossless_under_every_processor(mode: SamplingParams, setting: str, support: int) -> None:
    ladder = [Table(1, 4), Table(2, 4)]
    assert error_of_round(ladder, replace(mode, **SETTINGS[setting]), support=support) < TOLERANCE


@MODES
@pytest.mark.parametrize("seed", range(4))
def test_a_round_with_a_long_draft_is_lossless(mode: SamplingParams, seed: int) -> None:
    assert error_of_round([Table(10 + seed, 3), Table(20 + seed, 3)], mode, 4, k=3) < TOLERANCE


@MODES
def test_a_round_with_a_deterministic_draft_is_lossless(mode: SamplingParams) -> None:
    assert error_of_round([Table(9, 4), Table(10, 4)], mode, 4, k=3, deterministic=True) < TOLERANCE


@MODES
def test_a_round_with_p_equal_to_q_is_lossless(mode: SamplingParams) -> None:
    assert error_of_round([Table(11, 4), Table(11, 4)], mode) < TOLERANCE


@MODES
@pytest.mark.parametrize("target_support", [(3, 4), (2, 3), (1,)])
def test_a_round_with_disjoint_or_partly_common_supports_is_lossless(
    mode: SamplingParams, target_support: tuple[int, ...]
) -> None:
    ladder = [Table(12, 5, support=(0, 1, 2)), Table(13, 5, support=target_support)]
    assert error_of_round(ladder, mode) < TOLERANCE


@MODES
@pytest.mark.parametrize(("draft_size", "target_size"), [(5, 3), (3, 5)])
def test_a_round_with_differently_padded_vocabularies_is_lossless(
    mode: SamplingParams, draft_size: int, target_size: int
) -> None:
    assert error_of_round([Table(18, draft_size), Table(19, target_size)], mode) < TOLERANCE


@MODES
def test_a_round_without_a_draft_is_lossless(mode: SamplingParams) -> None:
    assert error_of_round([Table(16, 4), Table(17, 4)], mode, k=0) < TOLERANCE


@MODES
@pytest.mark.parametrize("support", [0, 2])
@pytest.mark.parametrize("deterministic", [False, True], ids=["sampled", "deterministic"])
@pytest.mark.parametrize(("k", "window"), [(2, 1), (1, 2)])
def test_a_ladder_of_three_is_lossless(
    mode: SamplingParams, support: int, deterministic: bool, k: int, window: int
) -> None:
    """Its middle verdicts vary in length: the case that makes a block scheme's laws worth proving."""
    ladder = [Table(20, 3), Table(21, 3), Table(22, 3)]
    how: dict[str, Any] = {"k": k, "window": window, "support": support, "deterministic": deterministic}
    assert error_of_round(ladder, mode, 3, **how) < TOLERANCE


@MODES
def test_a_middle_tiers_token_has_its_law_given_that_it_was_emitted(mode: SamplingParams) -> None:
    draft, middle = Table(23, 3), Table(24, 3)

    def run() -> tuple[int, ...]:
        drafted = propose(draft, mode, PROMPT, 3, 0, 0)
        return tuple(check(middle, mode, PROMPT, drafted, 1, want_laws=True).tokens.tolist())

    emitted: defaultdict[tuple[int, ...], np.ndarray] = defaultdict(lambda: np.zeros(3))
    for text, mass in exact_law(run).items():
        for i, token in enumerate(text):
            emitted[text[:i]][token] += mass
    assert max(len(prefix) for prefix in emitted) == 3
    for prefix, masses in emitted.items():
        history = [*PROMPT, *prefix]
        p = process(middle.logits(history), mode, history, len(PROMPT)).double().exp().numpy()
        np.testing.assert_allclose(masses / masses.sum(), p, atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(6))
def test_block_verification_accepts_at_least_as_much_as_token_wise(seed: int) -> None:
    draft, target = Table(30 + seed, 3), Table(40 + seed, 3)
    means = []
    for params in (REJECTION, BLOCK):

        def run(params: SamplingParams = params) -> int:
            return one_round([draft, target], params, PROMPT, itertools.count(), k=3)[0].num_accepted

        law = exact_law(run)
        means.append(sum(accepted * mass for accepted, mass in law.items()))
    assert means[1] > means[0] - 1e-9
    assert means[1] > 0.1


def swapped(p: Any, pi: float, ids: Any, q: Any, uniform: float) -> int:
    """A residual with p and q exchanged."""
    dense = np.zeros(len(p))
    dense[ids] = q
    weights = np.maximum(dense - pi * p, 0.0)
    return verify_module.law_tools.sample(weights, uniform)


@MODES
def test_a_residual_with_p_and_q_swapped_would_be_seen(
    mode: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "_draw_residual", swapped)
    assert error_of_round([Table(1, 4), Table(2, 4)], mode) > 1e-2


@MODES
def test_a_draft_that_misstates_its_law_would_be_seen(
    mode: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens drawn from the two likeliest, declared with the whole law: the commonest public bug."""

    def two_likeliest(probs: Probs) -> Floats:
        return np.where(probs >= np.sort(probs)[-2], probs, 0.0).astype(np.float64)

    monkeypatch.setattr(draw_module, "normalised", two_likeliest)
    assert error_of_round([Table(1, 4), Table(2, 4)], mode) > 1e-2


def test_dropping_a_drafted_token_by_its_value_would_be_seen() -> None:
    """Why drafts are never cut after looking at a token: p = q, tokens of q(x) < 0.4 dropped."""
    model = Table(11, 4)

    def run() -> tuple[int, ...]:
        drafted = propose(model, REJECTION, PROMPT, 1, 0, 0)
        assert drafted.laws is not None
        ids, probs = drafted.laws.at(0)
        if probs[ids == drafted.tokens[0]][0] < 0.4:
            drafted = propose(model, REJECTION, PROMPT, 0, 0, 0)
        return tuple(check(model, REJECTION, PROMPT, drafted, 1).tokens.tolist())

    law: Law = exact_law(run)
    got, wanted = joint_law(model, REJECTION, 1, law), joint_law(model, REJECTION, 1)
    assert max(abs(got[text] - wanted[text]) for text in wanted) > 1e-2

"""The law of the committed text is the target's: chi-square tests over table models."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from actors.sampling import draw as draw_module
from actors.sampling.laws import Floats, sample
from actors.sampling.params import SamplingParams
from tests.unit.sampling.tables import Table, generate, joint_law, p_value, sampled

pytestmark = pytest.mark.exactness

SAMPLES = 20_000
P_MIN = 1e-3

REJECTION = SamplingParams(temperature=1.0, block_verification=False)
BLOCK = SamplingParams(temperature=1.0)
COUPLED = SamplingParams(temperature=1.0, seed=1)
MODES = pytest.mark.parametrize("mode", [REJECTION, BLOCK, COUPLED], ids=["rejection", "block", "coupled"])

SETTINGS = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.15},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    "bias_and_min_tokens": {"logit_bias": ((2, 1.5), (90, 3.0)), "min_tokens": 1, "eos_ids": (3,)},
}


def assert_law(
    ladder: list[Table], params: SamplingParams, num_tokens: int = 2, proposes: bool = True, **how: object
) -> None:
    """The text of `generate(ladder, ...)` follows the last model's law, and drafts were really checked."""
    counts, acceptance = sampled(
        lambda one: generate(ladder, one, num_tokens, **how), params, SAMPLES  # type: ignore[arg-type]
    )
    assert p_value(counts, joint_law(ladder[-1], params, num_tokens)) > P_MIN
    assert acceptance > 0.01 or not proposes


@MODES
@pytest.mark.parametrize("setting", SETTINGS)
def test_law_is_the_targets_under_every_processor(mode: SamplingParams, setting: str) -> None:
    assert_law([Table(1, 5), Table(2, 5)], replace(mode, **SETTINGS[setting]))  # type: ignore[arg-type]


@MODES
def test_law_of_three_tokens_is_the_targets_with_a_long_draft(mode: SamplingParams) -> None:
    assert_law([Table(3, 3), Table(4, 3)], mode, num_tokens=3, k=4)


@MODES
def test_law_of_four_tokens_is_the_targets_over_several_rounds(mode: SamplingParams) -> None:
    assert_law([Table(5, 3), Table(6, 3)], mode, num_tokens=4, k=2)


@MODES
def test_law_is_the_targets_when_the_draft_is_drawn_from_a_truncated_law(mode: SamplingParams) -> None:
    assert_law([Table(7, 6), Table(8, 6)], mode, support=2, k=3)


@MODES
def test_law_is_the_targets_with_a_deterministic_draft(mode: SamplingParams) -> None:
    assert_law([Table(9, 4), Table(10, 4)], mode, deterministic=True)


@MODES
def test_law_is_the_targets_when_p_equals_q(mode: SamplingParams) -> None:
    assert_law([Table(11, 4), Table(11, 4)], mode)


@MODES
def test_law_is_the_targets_when_supports_are_disjoint(mode: SamplingParams) -> None:
    ladder = [Table(12, 6, support=(0, 1, 2)), Table(13, 6, support=(3, 4, 5))]
    assert_law(ladder, mode, proposes=False)


@MODES
def test_law_is_the_targets_when_supports_overlap_partly(mode: SamplingParams) -> None:
    assert_law([Table(14, 6, support=(0, 1, 2, 3)), Table(15, 6, support=(2, 3, 4, 5))], mode, k=3)


@MODES
def test_law_is_the_targets_with_an_empty_draft(mode: SamplingParams) -> None:
    assert_law([Table(16, 4), Table(17, 4)], mode, k=0, proposes=False)


@MODES
@pytest.mark.parametrize(("draft_size", "target_size"), [(6, 4), (4, 6)])
def test_law_is_the_targets_when_vocabularies_are_padded_differently(
    mode: SamplingParams, draft_size: int, target_size: int
) -> None:
    assert_law([Table(18, draft_size), Table(19, target_size)], mode)


@MODES
@pytest.mark.parametrize("support", [0, 2])
def test_law_is_the_last_tiers_in_a_ladder_of_three(mode: SamplingParams, support: int) -> None:
    ladder = [Table(20, 4), Table(21, 4), Table(22, 4)]
    assert_law(ladder, mode, num_tokens=3, k=2, support=support)


def test_law_is_the_last_tiers_in_a_ladder_of_three_over_a_deterministic_draft() -> None:
    assert_law([Table(23, 3), Table(24, 3), Table(25, 3)], BLOCK, num_tokens=3, deterministic=True)


def test_chi_square_rejects_the_drafts_law() -> None:
    """Adversary: had p and q been swapped anywhere, the text would follow q, and this test must see it."""
    ladder = [Table(1, 5), Table(2, 5)]
    for params in (REJECTION, BLOCK):
        counts, _ = sampled(functools.partial(generate, ladder, num_tokens=2), params, 4000)  # type: ignore[arg-type]
        assert p_value(counts, joint_law(ladder[0], params, 2)) < 1e-9
        assert p_value(counts, joint_law(ladder[1], params, 2)) > P_MIN


def test_chi_square_sees_a_law_that_is_not_the_one_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adversary: drafts drawn from a truncated law but declared with the whole one are caught."""
    honest = draw_module.truncate
    ladder = [Table(1, 5), Table(2, 5)]

    def lying_generate(params: SamplingParams) -> tuple[tuple[int, ...], float]:
        return generate(ladder, params, 2, support=2)

    def sample_top_two(weights: Floats, uniform: float) -> int:
        return sample(np.where(weights >= np.sort(weights)[-2], weights, 0.0), uniform)

    monkeypatch.setattr(draw_module, "truncate", lambda log_probs, support: honest(log_probs, 0))
    monkeypatch.setattr(draw_module, "sample", sample_top_two)
    counts, _ = sampled(lying_generate, REJECTION, 4000)
    assert p_value(counts, joint_law(ladder[1], REJECTION, 2)) < 1e-9

"""The law of generated text by sampling: real noise, several rounds, chi-square against the target's law.

`test_exact_law` covers every setting without sampling error but with the noise replaced; these tests
cover the noise and its keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actors.sampling.params import SamplingParams
from tests.unit.sampling.tables import Table, generate, joint_law, p_value, sampled
from tests.unit.sampling.test_exact_law import SETTINGS

pytestmark = pytest.mark.exactness

SAMPLES = 20_000
P_MIN = 1e-3

REJECTION = SamplingParams(temperature=1.0, block_verification=False)
BLOCK = SamplingParams(temperature=1.0)
COUPLED = SamplingParams(temperature=1.0, seed=1)
MODES = pytest.mark.parametrize("mode", [REJECTION, BLOCK, COUPLED], ids=["rejection", "block", "coupled"])


def assert_law(ladder: list[Table], params: SamplingParams, num_tokens: int, **how: Any) -> None:
    """The text of `generate(ladder, ...)` follows the last model's law, and drafts were really accepted."""
    counts, acceptance = sampled(lambda one: generate(ladder, one, num_tokens, **how), params, SAMPLES)
    assert p_value(counts, joint_law(ladder[-1], params, num_tokens)) > P_MIN
    assert acceptance > 0.05


@MODES
def test_law_of_four_tokens_is_the_targets_over_several_rounds(mode: SamplingParams) -> None:
    assert_law([Table(5, 3), Table(6, 3)], mode, num_tokens=4, k=2)


@pytest.mark.parametrize("mode", [REJECTION, COUPLED], ids=["rejection", "coupled"])
def test_law_is_the_targets_with_every_setting_and_a_truncated_draft(mode: SamplingParams) -> None:
    params = replace(
        mode, temperature=0.9, top_k=6, top_p=0.95, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.3,
        frequency_penalty=0.2, logit_bias=((2, 0.5),), min_tokens=1, eos_ids=(3,),
    )  # fmt: skip
    assert_law([Table(7, 8), Table(8, 7)], params, num_tokens=2, k=1, support=3)


@pytest.mark.parametrize("setting", [name for name in SETTINGS if name not in ("plain", "all")])
def test_coupled_law_is_the_targets_under_each_setting(setting: str) -> None:
    assert_law([Table(7, 4), Table(8, 4)], replace(COUPLED, **SETTINGS[setting]), num_tokens=2, k=1)


def test_coupled_law_is_the_targets_with_a_deterministic_draft_and_on_three_tiers() -> None:
    assert_law([Table(9, 4), Table(10, 4)], COUPLED, num_tokens=2, k=1, deterministic=True)
    assert_law([Table(20, 4), Table(21, 4), Table(22, 4)], COUPLED, num_tokens=2, k=1, window=1)


def test_law_is_the_last_tiers_in_a_ladder_of_three() -> None:
    assert_law([Table(20, 4), Table(21, 4), Table(22, 4)], BLOCK, num_tokens=2, k=2, window=1, support=3)


def test_chi_square_tells_the_drafts_law_from_the_targets() -> None:
    ladder = [Table(1, 5), Table(2, 5)]
    counts, _ = sampled(lambda one: generate(ladder, one, 2), BLOCK, 2000)
    assert p_value(counts, joint_law(ladder[0], BLOCK, 2)) < 1e-9
    assert p_value(counts, joint_law(ladder[1], BLOCK, 2)) > P_MIN

"""Block against token-wise verification: the same drafts, both rules, paired figures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rich.console import Console

from cluster.bench.blocks import BlockSettings, compare, render, summarise
from tests.models import tiny_runner

SETTINGS = BlockSettings(lookahead=4, rounds_per_prompt=6, temperature=1.0, law_support=0)
PROMPTS = [np.arange(5, 25, dtype=np.int32), np.arange(40, 52, dtype=np.int32)]


def test_a_draft_with_the_targets_own_law_is_kept_whole_by_both_rules() -> None:
    target, twin = tiny_runner("llama"), tiny_runner("llama", kv_tokens=1024)
    found = compare(target, twin, PROMPTS, SETTINGS)
    assert found.num_rounds == 12
    assert (found.token_wise, found.block, found.ratio) == pytest.approx((4.0, 4.0, 1.0), abs=1e-5)


def test_a_comparison_repeats_itself_and_tells_every_round() -> None:
    target, draft = tiny_runner("llama", scale=1.0), tiny_runner("llama", seed=1, scale=1.0)
    told: list[None] = []
    found = compare(target, draft, PROMPTS, SETTINGS, lambda: told.append(None))
    assert len(told) == found.num_rounds == 12
    assert 0 < found.token_wise < 4 and 0 < found.block < 4
    assert compare(target, draft, PROMPTS, SETTINGS) == found


def test_a_text_that_ends_goes_on_with_the_next_prompt() -> None:
    target, twin = tiny_runner("llama"), tiny_runner("llama", kv_tokens=1024)
    settings = BlockSettings(lookahead=4, rounds_per_prompt=6, law_support=0, eos_ids=tuple(range(97)))
    assert compare(target, twin, PROMPTS, settings).num_rounds == 2


def test_errors_are_those_of_pairs() -> None:
    token_wise, block = [1.0, 2.0, 3.0, 2.0], [1.5, 2.5, 3.5, 2.5]
    found = summarise(token_wise, block, 4)
    assert (found.token_wise, found.block, found.difference, found.difference_error) == (2.0, 2.5, 0.5, 0.0)
    assert found.ratio == 1.25
    spread = np.std(np.array(block) - 1.25 * np.array(token_wise), ddof=1)
    assert found.ratio_error == pytest.approx(spread / math.sqrt(4) / 2.0)
    assert set(found.as_json()) == set(type(found).__slots__)  # type: ignore[attr-defined]


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="share one runner"):
        compare(tiny_runner("llama"), tiny_runner("llama"), PROMPTS, SETTINGS)
    with pytest.raises(ValueError, match="two rounds or more"):
        summarise([1.0], [1.0], 4)
    with pytest.raises(ValueError, match="not one draft token was accepted"):
        summarise([0.0, 0.0], [0.0, 0.0], 4)
    with pytest.raises(ValueError, match="run fewer rounds"):
        compare(tiny_runner("llama"), tiny_runner("llama", seed=1), PROMPTS, BlockSettings(rounds_per_prompt=500))
    with pytest.raises(ValueError, match="draws nothing"):
        BlockSettings(temperature=0.0)
    with pytest.raises(ValueError, match="drafts nothing"):
        BlockSettings(lookahead=0)


def test_the_table_shows_both_rules() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(render(summarise([1.0, 2.0], [2.0, 2.0], 4)))
    assert "token-wise" in captured.get() and "1.333" in captured.get()

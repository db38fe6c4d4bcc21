"""Loops are found where they begin, and texts that only repeat a word now and then are none."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.training.data.filters import digest, is_question, loop_start


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(0, 50), st.integers(0, 30))
def test_a_loop_is_found_where_it_begins_to_repeat(seed: int, period: int, lead: int, extra: int) -> None:
    rng = np.random.default_rng(seed)
    before = rng.integers(1000, 2000, lead)  # other ids than the loop's: it cannot begin earlier
    turn = rng.integers(0, 1000, period)
    length = period + max(64, 3 * period) + extra
    text = np.concatenate([before, np.resize(turn, length)])
    start = loop_start(text)
    assert start is not None and lead < start <= lead + period
    assert loop_start(text[:start]) is None


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 400))
def test_random_text_is_no_loop(seed: int, length: int) -> None:
    assert loop_start(np.random.default_rng(seed).integers(0, 10**6, length)) is None


def test_a_loop_that_ended_is_none() -> None:
    assert loop_start(np.append(np.tile([1, 2, 3], 60), 9)) is None


def test_digests_see_letters_alone() -> None:
    assert digest("What is  2 + 2?") == digest("what is 22") != digest("what is 23")
    assert 0 <= digest("x") < 2**63
    assert is_question("Why is it so?") and not is_question("  ?!.. ok")

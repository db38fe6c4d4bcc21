"""The emulated model as the engine sees it: words depend on the prefix alone, and on nothing but its KV pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from actors.emulation.checked import BrokenPages
from actors.emulation.runner import EmulatedRunner
from actors.engine.packing import Part, pack
from actors.spec import ModelSpec, Voice
from tests.unit.emulation.devices import PAGE, TARGET, VOCAB, WORDS, emulated, text

DRAFT = (Voice("draft", 0, (0.7,), (0.5,)), TARGET)
PROMPT = list(range(40, 63))
TRUTH = PROMPT + text(PROMPT, 40, *DRAFT)
PAGES = np.array([17, 3, 250, 8, 9, 100, 41, 5, 77, 30, 31, 200, 60, 61, 62, 63, 4], np.int32)


def feed(runner: EmulatedRunner, ids: list[int], start: int, pages: np.ndarray = PAGES, **more: Any) -> list[int]:
    """Best words after each of `ids`, which stand at `start` and on."""
    part = Part(np.array(ids, np.int32), start, pages, len(ids))
    best: list[int] = runner.forward(pack([part], PAGE, **more)).numpy().argmax(-1).tolist()
    return best


def in_chunks(runner: EmulatedRunner, ids: list[int], sizes: Iterable[int]) -> list[int]:
    said, start = [], 0
    for size in sizes:
        said += feed(runner, ids[start : start + size], start)
        start += size
    return said


@pytest.mark.parametrize("size", [1, 2, 3, 7, 60])
def test_words_are_the_same_however_the_rows_are_cut_into_passes(size: int) -> None:
    runner, _ = emulated(*DRAFT)
    said = in_chunks(runner, TRUTH[:60], [size] * (60 // size) + [60 % size] * (60 % size > 0))
    assert said[len(PROMPT) - 1 :] == TRUTH[len(PROMPT) : 61]


def test_words_are_the_same_beside_other_sequences() -> None:
    runner, _ = emulated(*DRAFT)
    other = Part(np.array([12, 14, 16], np.int32), 0, np.array([300], np.int32), 1)
    mine = Part(np.array(TRUTH[:30], np.int32), 0, PAGES, 2)
    best = runner.forward(pack([other, mine, other], PAGE)).numpy().argmax(-1).tolist()
    assert best[1:3] == TRUTH[29:31]


def test_a_copied_page_continues_the_text_and_leaves_its_origin_alone() -> None:
    runner, _ = emulated(*DRAFT)
    feed(runner, TRUTH[:30], 0)
    forked = PAGES.copy()
    forked[7] = 150
    feed(runner, [TRUTH[30] + 2], 30, forked, copies=[(int(PAGES[7]), 150)])
    assert feed(runner, [TRUTH[30]], 30) == [TRUTH[31]]


def test_a_page_that_was_not_copied_gives_other_words() -> None:
    runner, _ = emulated(*DRAFT, kind=EmulatedRunner)
    feed(runner, TRUTH[:30], 0)
    forked = PAGES.copy()
    forked[7] = 150
    assert feed(runner, [TRUTH[30]], 30, forked) != [TRUTH[31]]


def test_a_row_fed_after_an_overwritten_predecessor_gives_other_words() -> None:
    runner, _ = emulated(*DRAFT, kind=EmulatedRunner)
    feed(runner, TRUTH[:30], 0)
    feed(runner, [TRUTH[29] + 2], 29)
    assert feed(runner, [TRUTH[30]], 30) != [TRUTH[31]]


@pytest.mark.parametrize("page", [0, 3, 6])
def test_a_checked_device_sees_pages_of_another_text_however_far_back(page: int) -> None:
    runner, _ = emulated(*DRAFT)
    feed(runner, TRUTH[:30], 0)
    mixed = PAGES.copy()
    mixed[page] = 150
    with pytest.raises(BrokenPages, match=f"at position {page * PAGE} of 30"):
        feed(runner, [TRUTH[30]], 30, mixed)


def test_a_trees_rows_say_what_chains_of_their_paths_would_and_its_path_may_be_moved() -> None:
    runner, _ = emulated(*DRAFT)
    context, other = TRUTH[:30], 44
    feed(runner, context[:29], 0)
    #        29           30         30     31         31     32
    ids = [TRUTH[29], other, TRUTH[30], other, TRUTH[31], TRUTH[32]]
    parents = np.array([-1, 0, 0, 1, 2, 4], np.int32)
    step = pack([Part(np.array(ids, np.int32), 29, PAGES, 6, parents)], PAGE)
    best = runner.forward(step).numpy().argmax(-1).tolist()
    assert best == [
        TRUTH[30], *text([*context, other], 1, *DRAFT), TRUTH[31], *text([*context, other, other], 1, *DRAFT),
        TRUTH[32], TRUTH[33],
    ]

    def slot(place: int) -> int:
        return int(PAGES[place // PAGE]) * PAGE + place % PAGE

    moves = np.array([[slot(31), slot(30)], [slot(33), slot(31)], [slot(34), slot(32)]], np.int32)
    assert feed(runner, [TRUTH[33]], 33, moves=[moves]) == [TRUTH[34]]


def test_a_trees_rows_have_positions_along_their_path() -> None:
    """At position 0 this voice is always right, later never."""
    runner, _ = emulated(Voice("draft", 0, (1.0, 0.0)), TARGET)
    truth = PROMPT + text(PROMPT, 20, TARGET)
    count = len(PROMPT)
    feed(runner, truth[:count], 0)
    ids = np.array([truth[count], truth[count] + 2, truth[count + 1]], np.int32)
    step = pack([Part(ids, count, PAGES, 3, np.array([-1, -1, 0], np.int32))], PAGE)
    own, other, below = runner.forward(step).numpy().argmax(-1).tolist()
    assert own != truth[count + 1]  # position 1
    assert other == text([*truth[:count], truth[count] + 2], 1, TARGET)[0]  # not its own word: position 0
    assert below == truth[count + 2]


def test_positions_in_a_draft_count_own_words_and_start_anew_after_a_catch_up() -> None:
    """At position 0 this voice is always right, later never."""
    runner, _ = emulated(Voice("draft", 0, (1.0, 0.0)), TARGET)
    truth = PROMPT + text(PROMPT, 20, TARGET)
    count = len(PROMPT)
    assert feed(runner, truth[:count], 0)[-1] == truth[count]
    wrong = feed(runner, [truth[count]], count)[0]  # its own word: position 1
    assert wrong != truth[count + 1]
    assert feed(runner, [truth[count + 1]], count + 1)[0] == truth[count + 2]  # not its own word
    assert feed(runner, truth[count : count + 2], count) == truth[count + 1 : count + 3]  # a catch-up


def test_words_are_words() -> None:
    runner, _ = emulated(*DRAFT)
    assert set(feed(runner, TRUTH[:60], 0)) <= set(WORDS.tolist())
    assert runner.vocab_size == VOCAB


def test_a_tier_without_an_emulation_is_refused() -> None:
    with pytest.raises(ValueError, match="give its tier an `emulation` section"):
        EmulatedRunner(ModelSpec(0, "builtin:smollm2"), WORDS, VOCAB)

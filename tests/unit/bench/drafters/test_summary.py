"""Figures of drafters are what their runs say, and nothing is made up where nothing was measured."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.bench.drafters.runs import Run
from cluster.bench.drafters.summary import OVERALL, by_position, cells, identical, quality, speedup
from cluster.coordinator.request import SpeculationFigures


def run(category: str = "qa", number: int = 0, ids: tuple[int, ...] = (1, 2, 3), **changes: Any) -> Run:
    figures = {"rounds": 2, "committed": 6, "drafted": 8, "accepted": 4, "drafted_at": (2, 2, 2, 2),
               "accepted_at": (2, 1, 1, 0), "draft_s": 0.4, "verify_s": 2.0}
    timing = {"steady_s": 3.0, "steady_tokens": 3}
    found = {**figures, **{k: v for k, v in changes.items() if k in SpeculationFigures.__slots__}}
    rest = {**timing, **{k: v for k, v in changes.items() if k not in SpeculationFigures.__slots__}}
    return Run(category, number, ids, SpeculationFigures(**found), **rest)


def test_each_category_has_a_cell_and_all_of_them_one() -> None:
    runs = [run("qa", 0), run("rag", 1, rounds=4), run("qa", 2)]
    alone = [run(each.category, each.number, steady_s=6.0, drafted=0) for each in runs]
    found = cells("ngram", 0.0, runs, alone)
    assert [cell.category for cell in found] == ["qa", "rag", OVERALL]
    assert [cell.mat for cell in found] == [3.0, 1.5, 18 / 8]
    assert [cell.num_runs for cell in found] == [2, 1, 3]
    assert all(cell.speedup is not None and cell.speedup.median == 2.0 for cell in found)
    assert found[0].tokens_per_s == 1.0
    assert found[0].draft_share == pytest.approx((0.8 / 16) / (4.0 / 4))
    assert found[0].as_json()["acceptance_by_position"] == [1.0, 0.5, 0.5, 0.0]


def test_positions_that_no_draft_reached_are_left_out() -> None:
    runs = [run(drafted_at=(4, 2), accepted_at=(3, 1)), run(drafted_at=(4,), accepted_at=(1,))]
    assert by_position(runs) == (0.5, 0.5)
    assert by_position([]) == ()


def test_answers_that_ended_with_their_first_round_have_no_speed() -> None:
    short = run(number=1, steady_tokens=0)
    assert speedup([short], [short]) is None
    both = speedup([run(number=0), short], [run(number=1), run(number=0, steady_s=9.0)])
    assert both is not None
    assert (both.median, both.count) == (3.0, 1)


def test_a_drafter_that_never_drafted_has_no_draft_share() -> None:
    (cell, _) = cells("x", 0.0, [run(drafted=0, draft_s=0.0)], [run()])
    assert cell.draft_share is None


def test_identical_tokens_are_counted_place_by_place_over_the_longer_text() -> None:
    assert identical([run(ids=(1, 2, 3, 4))], [run(ids=(1, 9, 3))]) == 0.5
    assert identical([run(ids=())], [run(ids=())]) == 1.0


def test_quality_compares_perplexities_under_the_target() -> None:
    exact = [run(logprobs=(-1.0, -1.0, -1.0))]
    lossy = [run(ids=(1, 2, 4), logprobs=(-1.0, -2.0, -3.0), relaxed=1, rounds=1)]
    found = quality("typical", 0.0, lossy, exact)
    assert found.perplexity / found.exact_perplexity == pytest.approx(2.718281828)
    assert (found.mat, found.exact_mat, found.relaxed) == (6.0, 3.0, 0.25)
    assert found.identical == pytest.approx(2 / 3)
    assert quality("typical", 1.0, lossy, exact).identical is None
    assert found.as_json()["lossy"] is True

"""The sections of `bench ladder` against a scripted service: structure, labels and exactness, never speed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cluster.bench.ladder import show
from cluster.bench.ladder.bench import EMULATED, LadderSettings, TextsDiffer
from cluster.bench.ladder.goals import FIGURES, GOALS
from cluster.bench.ladder.run import PARTS, run
from cluster.bench.watch import Unwatched
from tests.unit.bench.ladder.conftest import ScriptedStage

SMALL = LadderSettings(sections=("sync",), num_prompts=2, num_tokens=12, plain_tokens=6, lookaheads=(3, 5))


def test_every_section_has_a_part_and_named_figures() -> None:
    assert set(PARTS) == set(FIGURES) == set(LadderSettings().sections)
    assert set(GOALS) <= {name for names in FIGURES.values() for name in names}


def test_chains_have_a_number_per_lookahead_and_theory_beside_it(stage: ScriptedStage) -> None:
    bench = run(SMALL, stage, Unwatched())
    found = json.loads(json.dumps(bench.findings.as_json()))
    assert set(found["sync_speedup"]) == set(found["sync_vs_theory"]) == {"3", "5"}
    for k, theory in (("3", 2.48), ("5", 2.97)):
        assert found["sync_speedup"][k] / found["sync_vs_theory"][k] == pytest.approx(theory, abs=0.01)
    assert [row["name"] for row in found["rows"]] == ["chain, k = 3", "chain, k = 5"]
    assert found["rows"][0]["agreement"] == pytest.approx(3 / 4)


def test_overlap_is_compared_with_a_chain_that_is_measured_where_no_other_section_has(stage: ScriptedStage) -> None:
    bench = run(replace(SMALL, sections=("overlap",)), stage, Unwatched())
    assert {"overlap_speedup", "overlap_vs_best_sync", "target_idle_share"} <= set(bench.findings.figures)
    assert bench.findings.figures["overlap_hit_rate"] == pytest.approx(3 / 4)
    assert stage.configs["sync"].speculation.overlap is None
    assert stage.configs["overlap"].speculation.overlap is not None
    assert set(stage.servicer.applications) == {"sync", "overlap"}


def test_a_target_s_own_texts_are_asked_for_once_for_all_sections(stage: ScriptedStage) -> None:
    run(replace(SMALL, sections=("sync", "overlap", "trees")), stage, Unwatched())
    whole = [
        request for request in stage.servicer.requests
        if not request.speculation.enabled and request.speculation.HasField("enabled")
        and request.sampling.max_tokens == SMALL.num_tokens
    ]
    assert len(whole) == SMALL.num_prompts


def test_a_text_that_speculation_changes_fails_the_bench(stage: ScriptedStage) -> None:
    stage.servicer.is_wrong = True
    with pytest.raises(TextsDiffer, match="k = 3.*is not the text of plain decoding"):
        run(SMALL, stage, Unwatched())


def test_whatever_comes_from_emulated_devices_says_so(stage: ScriptedStage, tmp_path: Path) -> None:
    bench = run(replace(SMALL, sections=("sync", "overlap", "trees")), stage, Unwatched())
    found = bench.findings.as_json()
    assert set(bench.findings.figures) <= set(found["emulated_figures"])  # type: ignore[call-overload]  # object
    assert all(row["emulated"] for row in found["rows"])  # type: ignore[attr-defined]  # object
    console = Console(width=120)
    with console.capture() as captured:
        for table in show.tables(bench):
            assert EMULATED in str(table.title)
            console.print(table)
    assert "overlap_vs_best_sync" in captured.get()
    plot = tmp_path / "ladder.svg"
    show.draw(bench, plot)
    assert plot.read_text().startswith("<?xml")


def test_a_request_that_fails_leaves_its_section_out_with_the_reason(stage: ScriptedStage) -> None:
    prompts = [replace(prompt, text="full") for prompt in SMALL.prompts[:1]]
    skipped = run(replace(SMALL, prompts=prompts), stage, Unwatched()).findings.skipped
    assert set(skipped) == set(FIGURES["sync"])
    assert "RESOURCE_EXHAUSTED" in skipped["sync_theory_error"]

"""`bench scaling` on a real service of emulated devices: pools come and go by load, and no request notices."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from cluster.bench.scaling import show
from cluster.bench.scaling.run import run
from cluster.bench.scaling.script import Phase
from cluster.bench.watch import Unwatched
from cluster.cli.stage import LocalStage

pytestmark = [pytest.mark.bench, pytest.mark.ray, pytest.mark.slow]

SHORT = (Phase("many", 10, 9, 12, 3, 2), Phase("nobody drafts", 10, 0, 2, 0, 1), Phase("back", 10, 2, 0, 1, 1))


def test_pools_follow_the_load_to_none_and_back_and_no_request_fails(tmp_path: Path) -> None:
    with contextlib.closing(LocalStage()) as stage:
        bench = run(stage, Unwatched(), SHORT)
    show.draw(bench, tmp_path / "scaling.svg")
    found = json.loads(json.dumps(bench.findings.as_json()))
    assert found["failed_requests"] == 0, found["failures"]
    assert found["differing_texts"] == 0
    assert found["most_drafts"] >= 2
    assert found["most_targets"] >= 2
    assert found["fewest_drafts"] == 0
    assert found["draft_back_s"] < 30
    assert (tmp_path / "scaling.svg").stat().st_size > 0

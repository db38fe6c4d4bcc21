"""`bench ladder` on real services of emulated devices: gRPC, Ray, pools and all; structure, never a speed."""

from __future__ import annotations

import contextlib
import json

import pytest

from cluster.bench.ladder.bench import LadderSettings
from cluster.bench.ladder.run import run
from cluster.bench.watch import Unwatched
from cluster.cli.stage import LocalStage

pytestmark = [pytest.mark.bench, pytest.mark.ray]

SETTINGS = LadderSettings(sections=("sync", "overlap"), num_prompts=1, num_tokens=48, plain_tokens=8, lookaheads=(3,))


def test_services_follow_each_other_on_one_ray_and_speculation_changes_no_text() -> None:
    with contextlib.closing(LocalStage()) as stage:
        bench = run(SETTINGS, stage, Unwatched())
    found = json.loads(json.dumps(bench.findings.as_json()))
    assert not found["skipped"]
    assert found["sync_speedup"]["3"] > 1
    assert sum(found["rows"][-1]["overlapped"].values()) > 0
    assert 0 <= found["target_idle_share"] <= 1
    assert all(row["emulated"] for row in found["rows"])

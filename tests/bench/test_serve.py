"""`bench serve` on a real service of tiny models: gRPC, Ray, pools and all; structure and verdicts, never a speed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cluster.bench.serve.bench import ServeSettings
from cluster.bench.serve.goals import GOALS
from cluster.bench.serve.run import run, run_soak
from cluster.bench.serve.service import Service, serve_pools
from cluster.bench.watch import Unwatched
from cluster.cli import local
from cluster.cli.bench_serve import service_processes
from cluster.cli.serve import with_ports
from cluster.config import load_config
from tests.conftest import TinyModel

pytestmark = [pytest.mark.bench, pytest.mark.ray]

SETTINGS = ServeSettings(streams=(1, 32), duration_s=3.0, max_tokens=12, rounds=1)


@pytest.fixture(scope="module")
def service(tiny_model: TinyModel) -> Iterator[Service]:
    """Room for 32 streams, and a short queue behind them."""
    common = {"num_threads": 1, "kv_tokens": 16384, "max_sequences": 32, "resources": {"num_cpus": 0.2}}
    config = with_ports(load_config({
        "model_name": "tiny",
        "tiers": [
            {"name": "draft", "model": str(tiny_model("llama", seed=1)), **common},
            {"name": "target", "model": str(tiny_model("llama")), **common},
        ],
        "limits": {"max_concurrent_requests": 32, "max_queued_requests": 4},
        "speculation": {"draft_timeout_s": 10},
    }), *local.free_ports(2))  # fmt: skip
    with local.running(config):
        address = f"{local.LOOPBACK}:{config.server.grpc_port}"
        yield Service(address, config, serve_pools(config, local.APPLICATION), service_processes)


def test_every_part_gives_its_figures_or_says_why_not(service: Service) -> None:
    findings = run(SETTINGS, service, Unwatched())
    found = json.loads(json.dumps(findings.as_json(tuple(GOALS))))
    # A chat of a thousand tokens is longer than the tiny model's context.
    assert set(found["skipped"]) <= {"second_turn_prefill_share_target", "second_turn_prefill_share_draft"}
    assert found["control_ms_per_round_p50"] > 0
    assert found["control_ms_per_sequence_round"] > 0
    assert found["batch_efficiency_32"] > 0
    assert {level["loop"] for level in found["levels"]} == {"closed", "open"}
    for level in found["levels"]:
        allowed = {"OK"} if level["loop"] == "closed" else {"OK", "RESOURCE_EXHAUSTED"}  # open loops may overflow
        assert set(level["statuses"]) <= allowed
        assert level["first_token_ms_p50"] <= level["first_token_ms_p99"]
        assert level["goodput_requests_per_s"] <= level["requests_per_s"]
        assert level["mat"] >= 1


def test_a_short_soak_loses_nothing_and_frees_everything(service: Service) -> None:
    findings, verdicts = run_soak(SETTINGS, service, Unwatched(), duration_s=8.0, overload=3.0)
    holds = {verdict.claim: verdict.holds for verdict in verdicts}
    whys = {verdict.claim: verdict.why for verdict in verdicts}
    assert holds["nothing is lost"] is True
    assert holds["nothing fails"] is True, whys["nothing fails"]
    assert holds["all is freed"] is True, whys["all is freed"]
    assert holds["equal requests get equal texts"] is not False
    assert holds["memory is flat"] is None  # too short to tell
    memory = findings.details["memory"]
    assert isinstance(memory, list)
    assert any(process["name"] == "ray::RankWorker" and process["judged"] for process in memory)

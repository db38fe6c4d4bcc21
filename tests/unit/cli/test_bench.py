"""`outrider bench`: mistakes are one line; a running service is measured by its address."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.cli.bench_engine import Choices, checked
from cluster.cli.bench_serve import with_room
from cluster.cli.main import app
from cluster.config import load_config
from tests.unit.cli.conftest import Scripted


@pytest.mark.parametrize(("arguments", "said"), [
    (["engine", "--only", "stepps"], "choose from steps"),
    (["engine", "--weights", "int3"], "are not one of"),
    (["engine", "--rows", "1,x"], "write e.g. --rows 1,2,5"),
    (["engine", "--rows", "0"], "positive"),
    (["engine", "--device", "tpu"], "choose cpu, cuda"),
    (["engine", "--kernels", "fast"], "choose native or portable"),
    (["engine", "--target", "x", "--random-weights", "llama-1b"], "give one of them"),
    (["engine", "--target", "./nowhere"], "there is no directory"),
    (["engine", "--plot", "x.docx"], "give a file name that ends in"),
    (["engine", "--plot", "no/such/dir/x.png"], "there is no directory"),
    (["serve", "smollm2", "--address", "127.0.0.1:1"], "give one of them"),
    (["serve", "--category", "qa"], "needs --prompts"),
    (["serve", "--prompts", "none.jsonl"], "no prompt file"),
    (["serve", "--rates", "1,0"], "positive numbers"),
    (["serve", "--rates", "inf"], "positive numbers"),
    (["engine", "--page-tokens", "48"], "not a power of two"),
    (["engine", "--reduction", "slow"], "choose fast or fixed"),
    (["serve", "--lookahead", "2", "--no-speculation"], "contradict"),
    (["serve", "nowhere.yaml"], "no such file or preset"),
    (["ladder", "--only", "synk"], "choose from sync"),
    (["ladder", "--lookaheads", "3,x"], "write e.g. --lookaheads 1,2,5"),
    (["ladder", "--plot", "x.docx"], "give a file name that ends in"),
])
def test_a_mistake_is_one_line(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_running_service_is_measured_and_the_object_is_the_last_line(server: Scripted, tmp_path: Path) -> None:
    plot = tmp_path / "load.svg"
    arguments = ["--address", server.address, "--streams", "1,2", "--seconds", "1", "--only", "closed", "--json"]
    result = CliRunner().invoke(app, ["bench", "serve", *arguments, "--plot", str(plot)])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["levels"][0]["statuses"]["OK"] >= 1
    assert found["batch_efficiency_32"] is None
    assert "load through gRPC" in result.stderr
    assert plot.read_text().startswith("<?xml")


def test_room_is_made_for_all_streams_and_never_taken_away() -> None:
    config = load_config("smollm2", environ={})
    wide = with_room(config, 40)
    assert wide.limits.max_concurrent_requests == 40
    assert {tier.max_sequences for tier in wide.tiers} == {40}
    assert with_room(config, 1) == config


def test_kinds_follow_the_device_unless_they_are_named() -> None:
    chosen = Choices(
        target=None, draft=None, weights=None, target_weights=None, draft_weights=None, random_weights="llama-1b",
        device="cuda", kernels="native", reduction="fixed", page_tokens=16, threads=None, rows="1", contexts="64",
        rounds=1, tokens=8, lookahead=4, only="steps",
    )
    settings = checked(chosen)
    assert [kind.label for kind in settings.kinds] == ["bf16", "fp32"]
    assert settings.target_kind.label == settings.draft_kind.label == "bf16"
    assert settings.target.model == settings.draft.model == "random:llama-1b"
    assert settings.target.reduction == "fixed"
    named = checked(replace(chosen, device="cpu", weights="int8:bfloat16, w8a8"))
    assert [kind.label for kind in named.kinds] == ["int8:bfloat16", "w8a8"]

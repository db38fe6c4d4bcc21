"""`outrider bench engine` from the command line on tiny models: every figure or its reason, never a speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.bench.engine.goals import GOALS
from cluster.cli.main import app
from tests.conftest import TinyModel

pytestmark = pytest.mark.bench

QUICK = ["--repeats", "1", "--tokens", "8", "--contexts", "64", "--rows", "1,5", "--threads", "1"]


def bench(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, ["bench", "engine", *QUICK, "--json", *arguments])
    assert result.exit_code == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_every_part_gives_its_figures_and_plot(tiny_model: TinyModel, tmp_path: Path) -> None:
    target, draft = tiny_model("llama"), tiny_model("llama", seed=1)
    plot = tmp_path / "engine.png"
    found = bench(
        "--target", str(target), "--draft", str(draft), "--weights", "fp32,bf16,int8", "--plot", str(plot)
    )
    skipped = found["skipped"]
    assert isinstance(skipped, dict)
    missing = {name for name in GOALS if found[name] is None}
    assert missing <= skipped.keys()
    assert missing <= {"tp2_vs_tp1"}  # so small a model cannot be cut in two
    assert found["fraction_of_bandwidth_floor"].keys() == {"fp32", "bf16", "int8"}  # type: ignore[attr-defined]
    assert found["perplexity_int8_vs_fp32"] == pytest.approx(1.0, abs=0.1)
    assert found["ids_equal_to_transformers_fp32"] is True
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_steps_stand_beside_their_floors(tiny_model: TinyModel) -> None:
    found = bench("--target", str(tiny_model("llama")), "--weights", "fp32", "--only", "steps")
    steps = found["steps"]
    assert isinstance(steps, list)
    assert sorted((step["context"], step["rows"]) for step in steps) == [(0, 256), (64, 1), (64, 5)]
    for step in steps:
        assert step["ms_q1"] <= step["ms"] <= step["ms_q3"]
        assert step["bandwidth_floor_ms"] >= 0
        assert step["operations_floor_ms"] >= 0
    assert "verify5_vs_1_fp32" in found
    assert found["ar_vs_transformers_fp32"] is None  # it was not asked for


def test_a_kind_that_the_engine_refuses_is_left_out_with_its_reason(tiny_model: TinyModel) -> None:
    arguments = ["--target", str(tiny_model("llama")), "--kernels", "portable", "--only", "steps"]
    found = bench(*arguments, "--weights", "fp32,int4")
    assert set(found["skipped"]) == {"int4"}  # type: ignore[call-overload]
    result = CliRunner().invoke(app, ["bench", "engine", *QUICK, *arguments, "--weights", "int4"])
    assert result.exit_code == 1
    assert "no kind of weights can be run" in result.stderr


def test_a_context_that_the_model_does_not_have_is_one_line(tiny_model: TinyModel) -> None:
    arguments = ["--target", str(tiny_model("llama")), "--contexts", "600"]
    result = CliRunner().invoke(app, ["bench", "engine", *arguments])
    assert result.exit_code == 1
    assert "lower --contexts" in result.stderr


def test_random_weights_of_a_shape_need_no_model() -> None:
    found = bench("--random-weights", "tiny-llama", "--weights", "fp32", "--only", "steps,perplexity,decode")
    assert found["perplexity_int8_vs_fp32"] is None
    assert found["skipped"]["perplexity"] == "weights are random"  # type: ignore[index]
    assert isinstance(found["ar_vs_transformers_fp32"], float)

"""`outrider doctor` on tiny models, and its mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from actors.heads.medusa import MedusaHeads, medusa_config
from actors.heads.vocab import DraftVocabulary
from cluster.cli.main import app
from tests.tiny_checkpoint import tiny_checkpoint


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, the same again as "twin", and one with another tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    tiny_checkpoint(folder / "target")
    tiny_checkpoint(folder / "twin")
    tiny_checkpoint(folder / "foreign", seed=1, vocab_size=280)
    return folder


def examine(*arguments: str) -> tuple[dict[str, object], str]:
    result = CliRunner().invoke(app, ["doctor", *arguments, "--threads", "1", "--tokens", "24", "--json"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1]), result.stderr


def levels(found: dict[str, object]) -> dict[str, str]:
    return {finding["topic"]: finding["level"] for finding in found["findings"]}  # type: ignore[index, attr-defined]


def test_a_pair_of_models_is_examined(models: Path) -> None:
    found, said = examine("--target", str(models / "target"), "--draft", str(models / "twin"), "--max-lookahead", "4")
    assert found["tokenizer_fits"] is True
    assert found["size_ratio"] == 1.0
    assert found["acceptance_by_position"] == [1.0] * 4  # it drafts for itself
    assert found["target_1_row_ms"] > 0 < found["target_5_rows_ms"]  # type: ignore[operator]
    assert len(found["speedup_by_k"]) == 5  # type: ignore[arg-type]
    assert found["pays"] == (found["k"] != 0)
    assert levels(found)["size"] == "warning"
    assert len(said.split("\n")) == 2 + len(found["findings"])  # type: ignore[arg-type]  # a line each
    assert "verdict: it will" in said


def test_another_tokenizer_is_told_and_measured_through_a_translation(models: Path) -> None:
    found, said = examine("--target", str(models / "target"), "--draft", str(models / "foreign"))
    assert found["tokenizer_fits"] is False
    assert levels(found)["tokenizer"] == "problem"
    assert f"set drafter.tokenizers: {found['tokenizers']}" in said


def test_another_kind_over_the_same_target(models: Path) -> None:
    found, _ = examine("--target", str(models / "target"), "--kind", "ngram", "--hop-ms", "0.5")
    assert found["size_ratio"] is None
    assert 0 < found["rounds_with_a_draft"] <= 1  # type: ignore[operator]
    assert found["hop_ms"] == 0.5
    assert levels(found)["tokenizer"] == "ok"


def test_a_head_is_looked_at_as_far_as_it_goes_and_a_damaged_one_is_one_line(models: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(models / "target")
    output, size = model.lm_head.weight, model.config.vocab_size
    config = medusa_config(model.config, size, num_heads=2)
    MedusaHeads.fresh(config, model.model.norm.weight, output, DraftVocabulary(np.arange(size), size)).save(tmp_path)
    arguments = ["--target", str(models / "target"), "--kind", "medusa", "--head", str(tmp_path)]
    found, _ = examine(*arguments)
    assert len(found["speedup_by_k"]) == 1 + 2  # type: ignore[arg-type]
    (tmp_path / "model.safetensors").write_bytes(b"1")
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exit_code == 1
    assert f"error: {tmp_path}: model.safetensors is missing or damaged" in result.stderr


@pytest.mark.parametrize(("arguments", "said"), [
    (["nowhere.yaml"], "no such file or preset"),
    (["emulated-70b"], "has emulated tiers"),
    (["smollm2", "--target", "x"], "give one of them"),
    (["--draft", "x"], "name the target model too"),
    (["--draft-weights", "int4"], "--draft-weights needs --draft"),
    (["--target", "x"], "name one with --draft, or a kind with --kind"),
    (["--kind", "ngrom"], "--kind 'ngrom': choose from draft_model"),
    (["--head", "/x"], "--head needs --kind"),
    (["--questions", "none.jsonl"], "no prompt file"),
    (["--target", "./nowhere", "--draft", "./nowhere"], "there is no directory"),
    (["--target", "x", "--draft", "y", "--draft-weights", "int3"], "tiers.0.weights: got 'int3'"),
])
def test_a_mistake_is_one_line(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stderr.count("\n") == 1

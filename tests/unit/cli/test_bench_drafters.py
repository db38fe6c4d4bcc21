"""`outrider bench drafters` on a tiny pair, and its mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from actors.heads.directory import read_feature_layers
from actors.heads.eagle import EagleHead, eagle_config
from actors.heads.vocab import DraftVocabulary, most_frequent
from cluster.bench.drafters import bench
from cluster.cli.main import app
from tests.tiny_checkpoint import tiny_checkpoint


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration of two tiny models."""
    folder = tmp_path_factory.mktemp("pair")
    target = tiny_checkpoint(folder / "target")
    draft = tiny_checkpoint(folder / "draft", seed=1, num_layers=1)
    path = folder / "pair.yaml"
    tiers = [f"{{name: {name}, model: {model}, page_tokens: 16}}" for name, model in (("a", draft), ("b", target))]
    path.write_text(f"tiers: [{', '.join(tiers)}]")
    return path


@pytest.fixture(scope="module")
def head(pair: Path) -> str:
    """An untrained eagle head for the target."""
    model: Any = AutoModelForCausalLM.from_pretrained(pair.parent / "target")
    size = model.config.vocab_size
    vocabulary = DraftVocabulary(most_frequent(np.arange(size), 32, always=[1]), size)
    torch.manual_seed(0)
    directory = pair.parent / "eagle"
    EagleHead.fresh(
        eagle_config(model.config, 32, name="tiny"), model.get_input_embeddings().weight,
        model.get_output_embeddings().weight, vocabulary,
    ).save(directory)
    return str(directory)


def test_all_parts_on_a_tiny_pair(pair: Path, head: str, tmp_path: Path) -> None:
    plot = tmp_path / "drafters.svg"
    arguments = [
        "bench", "drafters", str(pair), "--kinds", "preset,draft_model,ngram,eagle,medusa", "--head", f"eagle={head}",
        "--per-category", "1", "--tokens", "12", "--categories", "qa,translation", "--max-prompt", "300", "--threads",
        "1", "--json", "--plot", str(plot),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["mat_draft_model_t0"] > 1.0
    assert found["draft_share_draft_model_t1"] > 0.0
    assert found["best_vs_transformers_fp32"] > 0.0
    assert found["settings"]["questions"] == "made up (seed 0)"
    assert found["skipped"]["medusa"] == "no head was given: --head medusa=DIR"
    layers = read_feature_layers(head, "eagle")
    assert found["drafters"]["eagle"]["feature_bytes_per_token"] == len(layers) * 64 * 2
    assert found["drafters"]["eagle"]["inline"]
    assert found["drafters"]["draft_model"]["feature_bytes_per_token"] == 0
    rows = found["rows"]
    assert {row["category"] for row in rows} == {"qa", "translation", "overall"}
    assert {row["kind"] for row in rows} == {"alone", "preset", "draft_model", "ngram", "eagle"}
    assert {row["temperature"] for row in rows} == {0.0, 1.0}
    assert found["drafters"]["draft_model"]["weight_bytes"] > 0
    assert found["drafters"]["draft_model"]["kv_bytes"] > 0
    assert found["drafters"]["ngram"]["kv_bytes"] == 0
    policies = {(row["policy"], row["temperature"]) for row in found["lossy"]["rows"]}
    assert policies == {(policy, t) for policy in ("typical", "bild") for t in (0.0, 1.0)}
    assert all(row["lossy"] and row["perplexity"] > 1 for row in found["lossy"]["rows"])
    assert found["lossy_typical_t0_identical_tokens"] is not None
    assert "LOSSY policies" in result.stderr
    assert plot.read_text().startswith("<?xml")


def test_a_changed_greedy_text_fails_the_command(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = bench.run

    def liar(ask, ladder, *rest):  # type: ignore[no-untyped-def]
        found = honest(ask, ladder, *rest)
        return bench.replace(found, ids=(*found.ids[:-1], 0)) if len(ladder.tiers) > 1 else found

    monkeypatch.setattr(bench, "run", liar)
    arguments = ["--kinds", "ngram", "--per-category", "1", "--categories", "qa", "--tokens", "8", "--temperature", "0"]
    result = CliRunner().invoke(app, ["bench", "drafters", str(pair), *arguments, "--only", "drafters"])
    assert result.exit_code == 1
    assert "drafter ngram changed the greedy text of question 0 (qa)" in result.stderr


@pytest.mark.parametrize(("arguments", "said"), [
    (["nowhere.yaml"], "no such file or preset"),
    (["emulated-70b"], "has emulated tiers"),
    (["--kinds", "ngrom"], "--kinds 'ngrom': choose from preset,draft_model"),
    (["--head", "eagle"], "--head 'eagle': write KIND=DIR"),
    (["--head", "owl=/x"], "--head 'owl=/x': write KIND=DIR"),
    (["--questions", "none.jsonl"], "no prompt file"),
    (["--categories", "cooking"], "--categories 'cooking': choose from mt_bench"),
    (["--temperature", "0,x"], "write e.g. 0,1"),
    (["--temperature", "7"], "write e.g. 0,1"),
    (["--only", "speed"], "--only 'speed': choose from drafters,lossy,peers"),
    (["--plot", "x.docx"], "give a file name that ends in"),
])
def test_a_mistake_is_one_line(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["bench", "drafters", *arguments])
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stderr.count("\n") == 1

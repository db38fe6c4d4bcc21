"""`outrider train`: the options of each kind, and mistakes in one line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from actors.loading.tokenizer import fingerprint, load_tokenizer
from actors.training.data.recipe import Recipe
from actors.training.data.shards import Description, Text, write_description, write_shard
from cluster.cli.main import app
from cluster.cli.train import KINDS
from tests.tiny_checkpoint import tiny_checkpoint


def _say(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["train", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_the_command_line_and_the_registry_know_the_same_kinds() -> None:
    from actors.training import registry

    assert KINDS == registry.KINDS
    assert {registry.kind_class(name).name for name in KINDS} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_has_shared_options_and_its_own(name: str) -> None:
    from actors.training.registry import kind_class

    code, text = _say(name, "--help")
    assert code == 0 and kind_class(name).summary[:40] in " ".join(text.split())
    assert "--draft-vocab" in text and "--loss" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("draft", "{tmp}/out", "--data", "{tmp}/none"), "no corpus"),
        (("draft", "{tmp}/out", "--layers", "a,b", "--data", "{tmp}"), "whole numbers"),
        (("data", "{tmp}/data", "--temperatures", "hot"), "numbers like"),
        (("data", "{tmp}/data", "--only-prompts"), "--prompts"),
        (("data", "{tmp}/data", "--prompts", "{tmp}/none.txt"), "cannot be read"),
        (("data", "{tmp}/data", "--target", "{tmp}/none"), "no directory"),
        (("data", "{tmp}/data", "--temperatures", "0,inf"), "numbers like"),
        (("data", "{tmp}/data", "--device", "gpu"), "choose cpu, cuda or cuda:N"),
        (("draft", "{tmp}/out", "--device", "cuda:99"), "choose another one or cpu"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    code, text = _say(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert code == 1 and words in text and len(text.strip().splitlines()) == 1, text


def _tiny(directory: Path) -> tuple[str, ...]:
    """Options of a target and a corpus of texts that nobody wrote."""
    target = tiny_checkpoint(directory / "target")
    tokenizer = load_tokenizer(target)
    corpus = directory / "corpus"
    write_description(corpus, Description(target, fingerprint(tokenizer), len(tokenizer), Recipe().to_json(), "fp32"))
    ids = np.random.default_rng(0).integers(2, 299, (16, 20)).astype(np.int32)
    answer = (np.arange(20) >= 6).astype(np.uint8)
    write_shard(corpus, 0, [Text(row, answer, i, i % 4 == 0, 1.0, i) for i, row in enumerate(ids)])
    return ("--target", target, "--data", str(corpus), "--num-steps", "2", "--draft-vocab", "100", "--threads", "1")


def _damage(out: Path, what: str) -> None:
    kept = out / "checkpoint"
    match what:
        case "no state":
            (kept / "state.json").unlink()
        case "another state":
            (kept / "state.json").write_text("[]")
        case "half a state":
            (kept / "state.json").write_text('{"run": {}, "state": {"steps": 1}}')
        case "no noise":
            (kept / "noise-0.safetensors").unlink()
        case "half the weights" | "half the optimiser":
            file = kept / ("trainee.safetensors" if what == "half the weights" else "optimiser.safetensors")
            file.write_bytes(file.read_bytes()[:100])
        case "other weights":
            save_file({"x": np.zeros(3, np.float32)}, kept / "trainee.safetensors")


def test_a_damaged_checkpoint_and_a_directory_for_nobody_are_one_line_and_restart_begins_anew(tmp_path: Path) -> None:
    options, out = _tiny(tmp_path), tmp_path / "out"

    def train(*more: str, where: Path = out) -> tuple[int, list[str]]:
        code, text = _say("medusa", str(where), *options, *more)
        return code, [line for line in text.splitlines() if "error:" in line or "Traceback" in line]

    assert train()[0] == 0
    for what in ("no state", "another state", "half a state", "no noise", "half the weights", "half the optimiser",
                 "other weights"):
        _damage(out, what)
        code, lines = train()
        assert code == 1 and len(lines) == 1 and "is damaged" in lines[0] and "--restart" in lines[0], (what, lines)
        assert train("--restart") == (0, [])
    os.replace(out / "checkpoint", out / "checkpoint.old")  # a process died there
    assert train("--lr", "0.5")[0] == 1
    assert train("--lr", "0.5", "--restart") == (0, [])
    (out / "untrained.json").write_text("[]")
    assert train("--lr", "0.5") == (0, [])
    code, lines = train(where=tmp_path / "target" / "config.json")
    assert code == 1 and len(lines) == 1 and "name a directory that can be written" in lines[0]

"""`outrider train`: the options of each kind, and mistakes in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.cli.main import app
from cluster.cli.train import KINDS


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
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    code, text = _say(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert code == 1 and words in text and len(text.strip().splitlines()) == 1, text

"""Every command shows how it is used, and NO_COLOR is honoured to the last escape code."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer import rich_utils
from typer.main import get_command
from typer.testing import CliRunner

from cluster.cli.main import app

ESCAPE = "\x1b"


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all that can be run."""
    if not hasattr(group, "list_commands"):
        yield path
        return
    for name in group.list_commands(None):
        yield from commands(group.get_command(None, name), (*path, name))


def test_every_command_has_an_example_of_itself_and_none_of_its_help_is_coloured_with_no_color(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rich_utils, "FORCE_TERMINAL", True)
    monkeypatch.setattr(rich_utils, "COLOR_SYSTEM", None)  # as with NO_COLOR
    found = list(commands(get_command(app)))
    assert len(found) > 18
    for path in found:
        shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0, path
        _, _, below = shown.output.partition("Example")
        assert f"outrider {' '.join(path)}" in below, path
        assert ESCAPE not in shown.output, path


def test_examples_name_options_that_exist() -> None:
    root: Any = get_command(app)
    for path in commands(root):
        command = root
        for name in path:
            command = command.get_command(None, name)
        known = {option for parameter in command.params for option in parameter.opts}
        begins = f"outrider {' '.join(path)} "
        own = [line for line in (command.epilog or "").splitlines() if line.strip().startswith(begins)]
        used = {word for line in own for word in line.split("&&")[0].split("|")[0].split() if word.startswith("--")}
        assert used <= known, path


def on_a_terminal(*arguments: str, **more: str) -> str:
    """What a command prints on a terminal, both streams."""
    ours, theirs = pty.openpty()
    environ = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-c", "from cluster.cli.main import app; app()", *arguments],
        stdout=theirs, stderr=theirs, stdin=theirs, env=environ | {"TERM": "xterm-256color"} | more,
    ):
        os.close(theirs)
        parts: list[bytes] = []
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            parts.append(part)
    os.close(ours)
    return b"".join(parts).decode()


@pytest.mark.parametrize("arguments", [("config", "check", "nowhere.yaml"), ("plan", "--streams", "0")])
def test_mistakes_on_a_terminal_have_colour_but_not_with_no_color(arguments: tuple[str, ...]) -> None:
    assert ESCAPE in on_a_terminal(*arguments)
    plain = on_a_terminal(*arguments, NO_COLOR="1")
    assert plain.strip()
    assert ESCAPE not in plain

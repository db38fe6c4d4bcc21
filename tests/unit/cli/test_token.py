"""`outrider token new`: the token to one stream, what is kept of it to the other."""

from __future__ import annotations

from typer.testing import CliRunner

from cluster.cli.main import app
from cluster.ingress.allowance import Allowance
from cluster.ingress.tokens import read_tokens


def test_the_line_on_stdout_knows_the_token_on_stderr() -> None:
    result = CliRunner().invoke(app, ["token", "new", "alice"])
    assert result.exit_code == 0
    token = next(word for word in result.stderr.split() if word.startswith("outrider.alice."))
    caller = read_tokens(result.stdout, "stdout", Allowance()).caller(token)
    assert caller is not None and caller.name == "alice"
    assert token not in result.stdout


def test_a_bad_name_is_one_line() -> None:
    result = CliRunner().invoke(app, ["token", "new", "Not A Name"])
    assert result.exit_code == 1
    assert "is no name for a token" in result.stderr
    assert result.stderr.count("\n") == 1

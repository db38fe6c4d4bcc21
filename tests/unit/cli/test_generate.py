"""`outrider generate` against a scripted server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import grpc
import pytest
from typer.testing import CliRunner, Result

from cluster.cli.main import app
from cluster.rpc import outrider_pb2 as pb
from tests.unit.cli.conftest import Scripted

RUNNER = CliRunner()


def generate(server: Scripted, *arguments: str, stdin: str | None = None) -> Result:
    return RUNNER.invoke(app, ["generate", "--address", server.address, *arguments], input=stdin)


def test_text_goes_to_stdout_alone_and_figures_to_stderr(server: Scripted) -> None:
    result = generate(server, "hi")
    assert result.exit_code == 0
    assert result.stdout == "Hello ✓\n"
    assert "accepted 2/4 (50%)" in result.stderr
    assert "MAT 1.50" in result.stderr


def test_an_emulated_service_is_named_so_beside_its_figures(server: Scripted) -> None:
    assert "EMULATED" not in generate(server, "hi").stderr
    assert json.loads(generate(server, "hi", "--json").stdout)["emulated"] is False
    server.model = "emulated:builtin:smollm2"
    result = generate(server, "hi")
    assert "EMULATED devices, no model ran" in result.stderr
    assert result.stdout == "Hello ✓\n"
    assert json.loads(generate(server, "hi", "--json").stdout)["emulated"] is True


def test_options_reach_the_request_and_absent_ones_stay_absent(server: Scripted) -> None:
    generate(server, "hi", "--system", "be kind", "--temperature", "0.5", "--seed", "7", "--lookahead", "3",
             "--stop", "a", "--stop", "b", "--max-tokens", "9")  # fmt: skip
    request = server.requests[0]
    assert [(m.role, m.content) for m in request.chat.messages] == [("system", "be kind"), ("user", "hi")]
    assert request.sampling.temperature == 0.5
    assert request.sampling.seed == 7
    assert request.sampling.max_tokens == 9
    assert list(request.sampling.stop_strings) == ["a", "b"]
    assert request.speculation.lookahead_tokens == 3
    assert not request.sampling.HasField("top_p")
    assert not request.speculation.HasField("enabled")


def test_lossy_text_is_asked_for_and_labelled_and_exact_text_is_neither(server: Scripted) -> None:
    plain, lossy, exact = (generate(server, "hi", *arguments) for arguments in ([], ["--lossy"], ["--exact"]))
    asked = [request.speculation for request in server.requests]
    assert [(one.HasField("lossy"), one.lossy) for one in asked] == [(False, False), (True, True), (True, False)]
    assert "LOSSY (typical, 1 tokens the target refuses)" in lossy.stderr
    assert "LOSSY" not in plain.stderr + exact.stderr
    assert json.loads(generate(server, "hi", "--lossy", "--json").stdout)["lossy_policy"] == "typical"
    assert "lossy_policy" not in json.loads(generate(server, "hi", "--json").stdout)


def test_raw_text_is_sent_as_it_is_and_speculation_can_be_off(server: Scripted) -> None:
    generate(server, "-", "--raw", "--no-speculation", stdin="to continue\n")
    request = server.requests[0]
    assert request.text == "to continue\n"
    assert request.speculation.HasField("enabled")
    assert not request.speculation.enabled


def test_json_is_one_object_with_text_ids_and_figures(server: Scripted) -> None:
    answer = json.loads(generate(server, "hi", "--json").stdout)
    assert answer["text"] == "Hello ✓"
    assert len(answer["token_ids"]) == 3
    assert answer["acceptance"] == 0.5
    assert answer["speculation"]["num_drafted"] == 4
    assert answer["reason"] == "FINISH_REASON_LENGTH"


def test_origins_are_counted_per_chunk(server: Scripted) -> None:
    assert "Hel<1a>lo <1a>✓<1a>" in generate(server, "hi", "--show-origin").stdout


def test_text_that_looks_like_markup_is_printed_as_it_is(server: Scripted) -> None:
    server.pieces = ["[bold]x[/bold] ", ":smile: [/]"]
    for flags in ([], ["--show-origin"]):
        assert "[bold]x[/bold] " in generate(server, "hi", *flags).stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--lookahead", "2", "--no-speculation"], "remove one"),
        (["--raw", "--system", "x"], "remove --raw"),
        (["--max-tokens", "99999999999"], "out of range"),
    ],
)
def test_mistakes_are_one_line_naming_the_fix(server: Scripted, arguments: list[str], named: str) -> None:
    result = generate(server, "hi", *arguments)
    assert result.exit_code == 1
    assert named in result.stderr
    assert result.stderr.count("\n") == 1
    assert not server.requests


def test_status_and_sentence_of_the_server_are_shown_in_one_line(server: Scripted) -> None:
    server.error = (grpc.StatusCode.INVALID_ARGUMENT, "top_p is 2.0; use a value in (0, 1]")
    result = generate(server, "hi")
    assert result.exit_code == 1
    assert result.stderr == "error: invalid argument: top_p is 2.0; use a value in (0, 1]\n"


def test_no_server_names_the_command_that_starts_one(server: Scripted) -> None:
    server.address = "127.0.0.1:1"
    result = generate(server, "hi")
    assert result.exit_code == 1
    assert "outrider serve" in result.stderr


def test_interrupt_cancels_the_call_at_the_server(server: Scripted) -> None:
    server.hang = True
    # A test run in the background of a shell ignores SIGINT, and its children would inherit that.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from cluster.cli.main import app; app()"
    command = [sys.executable, "-c", code, "generate", "hi", "--address", server.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.read(3) == b"Hel"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert server.ended.wait(60)


def test_every_origin_has_a_mark() -> None:
    from cluster.cli.generate import MARKS, STYLES

    named = set(pb.Origin.values()) - {pb.ORIGIN_UNSPECIFIED}
    assert set(MARKS) == set(STYLES) == named

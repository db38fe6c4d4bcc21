"""The demo's comparison: what it asks, what it concludes."""

from __future__ import annotations

import json

from rich.console import Console

from cluster.cli import client, compare
from tests.unit.cli.conftest import Scripted


def run(server: Scripted) -> list[compare.Comparison]:
    with client.connect(server.address) as stub:
        return compare.compare(stub, client.Options(max_tokens=8), 10, prompts=compare.PROMPTS[:2])


def test_identical_texts_are_found_and_each_prompt_is_warmed_up_before_both_runs(server: Scripted) -> None:
    outcome = compare.summary(run(server))
    assert outcome["identical"] is True
    assert outcome["conclusive"] is True
    assert outcome["acceptance"] == 0.5
    assert outcome["mat"] == 1.5
    asked = [(r.sampling.max_tokens, not r.speculation.HasField("enabled")) for r in server.requests]
    assert asked == [(1, True), (8, False), (8, True)] * 2
    json.dumps(outcome)


def test_a_different_text_is_never_called_identical(server: Scripted) -> None:
    server.other_pieces = ["Hel", "lo ", "x"]
    assert compare.summary(run(server))["identical"] is False


def test_nothing_drafted_is_inconclusive(server: Scripted) -> None:
    server.num_drafted = 0
    outcome = compare.summary(run(server))
    assert outcome["conclusive"] is False
    assert outcome["acceptance"] is None


def test_table_shows_the_speed_up_as_a_ratio_and_the_verdict(server: Scripted) -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115  # closed with the process
    console.print(compare.table(run(server)))
    text = console.export_text()
    assert "speed-up" in text
    assert text.count("yes") == 3
    assert "x " in text.split("all", 1)[1]

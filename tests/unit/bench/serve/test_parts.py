"""The parts of `bench serve` against a scripted service: structure and keys, never speed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cluster.bench.serve.asks import Figures
from cluster.bench.serve.bench import ServeSettings
from cluster.bench.serve.parts.chat import prefill_share
from cluster.bench.serve.run import run, run_soak
from cluster.bench.serve.service import Service
from cluster.bench.texts import Prompt
from cluster.bench.watch import Unwatched
from tests.unit.bench.serve.conftest import Scripted

FINE = ServeSettings(prompts=(Prompt("x", "fine"),), streams=(1, 32), duration_s=1.0, max_tokens=6, rounds=2)


def test_a_run_has_every_figure_or_the_reason_why_not(scripted: tuple[Scripted, str]) -> None:
    findings = run(FINE, Service(scripted[1]), Unwatched())
    found = json.loads(json.dumps(findings.as_json()))
    assert [level["loop"] for level in found["levels"]] == ["closed", "closed", "open", "open"]
    assert found["control_ms_per_round_p50"] == pytest.approx(2.0)
    rounds = 3  # of six tokens
    assert found["control_ms_per_sequence_round"] == pytest.approx(10 / rounds / 32, rel=1e-4)
    assert found["second_turn_prefill_share_target"] == pytest.approx(0.1)
    assert found["second_turn_prefill_share_draft"] == pytest.approx(0.2)
    assert "let the bench start it" in found["skipped"]["batch_efficiency_32"]
    chats = [request for request in scripted[0].requests if len(request.chat.messages) == 3]
    assert [message.role for message in chats[0].chat.messages] == ["user", "assistant", "user"]
    assert chats[0].chat.messages[1].content == "ababab"


def test_levels_that_were_not_asked_for_are_named(scripted: tuple[Scripted, str]) -> None:
    settings = replace(FINE, streams=(2,), sections=("closed",))
    skipped = run(settings, Service(scripted[1]), Unwatched()).skipped
    assert set(skipped) == {"control_ms_per_round_p50", "control_ms_per_sequence_round"}


def test_a_chat_that_the_service_does_not_take_is_left_out_with_its_reason(scripted: tuple[Scripted, str]) -> None:
    scripted[0].max_prompt = 500
    settings = replace(FINE, sections=("chat",))
    skipped = run(settings, Service(scripted[1]), Unwatched()).skipped
    assert "prompts of 500 tokens" in skipped["second_turn_prefill_share_target"]


def test_refusals_are_counted_by_status(scripted: tuple[Scripted, str]) -> None:
    settings = replace(FINE, prompts=(Prompt("x", "full"),), streams=(1,), sections=("closed",))
    findings = run(settings, Service(scripted[1]), Unwatched())
    (level,) = findings.details["levels"]  # type: ignore[misc]  # object
    assert set(level["statuses"]) == {"RESOURCE_EXHAUSTED"}


def test_a_soak_of_a_service_that_cannot_be_looked_into_says_so(scripted: tuple[Scripted, str]) -> None:
    findings, verdicts = run_soak(FINE, Service(scripted[1]), Unwatched(), duration_s=1.0, overload=0.2)
    holds = {verdict.claim: verdict.holds for verdict in verdicts}
    assert holds["nothing is lost"] is True
    assert holds["memory is flat"] is None
    assert holds["all is freed"] is None
    assert findings.figures["soak_requests"] >= 1
    json.dumps(findings.as_json())


def test_a_tier_that_says_nothing_of_its_cache_has_no_share() -> None:
    assert prefill_share(Figures(num_prompt_tokens=10), None) is None
    assert prefill_share(Figures(num_prompt_tokens=10), 0) == 1.0
    assert prefill_share(Figures(num_prompt_tokens=10), 9) == pytest.approx(0.1)

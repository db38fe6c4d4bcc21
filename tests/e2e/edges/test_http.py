"""OpenAI's official client against a real service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from cluster.cli import client
from cluster.cli.client import Options
from cluster.rpc import outrider_pb2 as pb
from tests.e2e.edges.conftest import MODEL
from tests.e2e.service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]

TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
HELLO: Any = [{"role": "user", "content": "one two three one two"}]


@pytest.fixture(scope="module")
def api(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.http}/v1", api_key="none", max_retries=0, timeout=120) as connected:
        yield connected


@pytest.mark.exactness
def test_http_gives_the_ids_of_grpc_and_speculation_changes_nothing(api: openai.OpenAI, service: Service) -> None:
    for options in (Options(temperature=0.0, max_tokens=40), Options(temperature=0.9, seed=11, max_tokens=40)):
        wanted = service.ask(options, HELLO[0]["content"])
        asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 40, "temperature": options.temperature,
                      "seed": options.seed}
        whole = api.chat.completions.create(**asked)
        assert whole.choices[0].message.content == wanted.text
        details = whole.usage and whole.usage.completion_tokens_details
        assert details
        assert (details.accepted_prediction_tokens or 0) > 0, "no draft was accepted: inconclusive"
        alone = api.chat.completions.create(**asked, extra_body={"speculation": {"enabled": False}})
        assert alone.choices[0].message.content == wanted.text
        pieces = list(api.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == wanted.text
        assert pieces[-1].usage
        assert pieces[-1].usage.completion_tokens == len(wanted.token_ids)
        assert pieces[-1].usage.prompt_tokens == wanted.finish.usage.prompt_tokens


@pytest.mark.exactness
def test_choice_i_is_the_text_of_seed_plus_i(api: openai.OpenAI, service: Service) -> None:
    options = Options(temperature=1.0, max_tokens=16, seed=40)
    wanted = [service.ask(replace(options, seed=40 + i), HELLO[0]["content"]).text for i in range(3)]
    asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 16, "temperature": 1.0, "seed": 40, "n": 3}
    assert [c.message.content for c in api.chat.completions.create(**asked).choices] == wanted
    texts = ["", "", ""]
    for event in api.chat.completions.create(**asked, stream=True):
        for choice in event.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == wanted


def test_completions_logprobs_and_stop(api: openai.OpenAI) -> None:
    got = api.completions.create(model=MODEL, prompt="one two", max_tokens=12, logprobs=2, temperature=0)
    choice = got.choices[0]
    assert choice.finish_reason == "length"
    assert choice.logprobs
    assert choice.logprobs.tokens
    assert len(choice.logprobs.tokens) == 12
    for top, chosen in zip(choice.logprobs.top_logprobs or [], choice.logprobs.token_logprobs or [], strict=True):
        assert max(top.values()) == pytest.approx(chosen)  # greedy
    letter = next(token for token in choice.logprobs.tokens if token.isascii() and token.isprintable())
    cut = api.completions.create(model=MODEL, prompt="one two", max_tokens=12, stop=letter, temperature=0)
    assert cut.choices[0].text == choice.text[: choice.text.index(letter)]
    assert cut.choices[0].finish_reason == "stop"


def test_tools_reach_the_template_and_mistakes_come_in_openais_shape(api: openai.OpenAI, service: Service) -> None:
    counts = [
        api.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2, **more).usage
        for more in ({}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"})
    ]
    without, shown, hidden = (usage.prompt_tokens if usage else 0 for usage in counts)
    assert shown > without + 80
    assert hidden == without
    with pytest.raises(openai.BadRequestError) as raised:
        api.chat.completions.create(model=MODEL, messages=HELLO, temperature=9)
    assert (raised.value.param, raised.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError):
        api.chat.completions.create(model="other", messages=HELLO, stream=True)
    assert [model.id for model in api.models.list()] == [MODEL]


def test_json_schema_holds_streamed_and_whole(api: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"sky": {"enum": ["blue", "grey"]}}, "required": ["sky"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema, "strict": True}}
    asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 400, "temperature": 1.0, "seed": 3,
                  "response_format": form}
    whole = api.chat.completions.create(**asked).choices[0]
    assert json.loads(whole.message.content or "")["sky"] in ("blue", "grey")
    assert whole.finish_reason == "stop"
    pieces = api.chat.completions.create(**asked, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole.message.content


def test_a_call_that_is_forced_is_made_streamed_and_whole(api: openai.OpenAI) -> None:
    def tool(name: str, *cities: str) -> Any:
        schema = {"type": "object", "properties": {"city": {"enum": cities}}, "required": ["city"],
                  "additionalProperties": False}
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    tools = [tool("weather", "Rome", "Oslo"), tool("time", "Lima", "Quito")]
    for choice, names in (("required", {"weather", "time"}),
                          ({"type": "function", "function": {"name": "time"}}, {"time"})):
        asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 500, "temperature": 1.0, "seed": 4,
                      "tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
        whole = api.chat.completions.create(**asked)
        assert (whole.choices[0].finish_reason, whole.choices[0].message.content) == ("tool_calls", None)
        (call,) = whole.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.name in names
        cities = ("Rome", "Oslo") if call.function.name == "weather" else ("Lima", "Quito")
        assert json.loads(call.function.arguments)["city"] in cities
        assert whole.usage
        assert whole.usage.completion_tokens_details
        assert whole.usage.completion_tokens_details.accepted_prediction_tokens, "no draft was accepted: inconclusive"
        name, arguments = "", ""
        for event in api.chat.completions.create(**asked, stream=True):
            for piece in event.choices[0].delta.tool_calls or []:
                assert piece.function
                name, arguments = name + (piece.function.name or ""), arguments + (piece.function.arguments or "")
        assert event.choices[0].finish_reason == "tool_calls"
        assert (name, arguments) == (call.function.name, call.function.arguments)
    bad = {"type": "function", "function": {"name": "f", "parameters": {"not": {"type": "null"}}}}
    with pytest.raises(openai.BadRequestError, match="a schema among tools cannot be used: ") as raised:
        api.chat.completions.create(**{**asked, "tools": [bad], "tool_choice": "required"})
    assert raised.value.param == "tools"


def test_a_client_that_leaves_frees_everything(api: openai.OpenAI, service: Service) -> None:
    endless: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 900, "temperature": 1.0,
                    "extra_body": {"ignore_eos": True}}
    with api.chat.completions.create(**endless, stream=True, n=2) as stream:
        next(iter(stream))
    service.wait_idle()
    with pytest.raises(openai.APITimeoutError):  # an answer that is not streamed
        api.with_options(timeout=0.3).chat.completions.create(**endless)
    service.wait_idle()


def test_overload_is_429_with_a_hint(api: openai.OpenAI, service: Service) -> None:
    with pytest.raises(openai.RateLimitError) as raised:
        api.chat.completions.create(
            model=MODEL, messages=HELLO, n=16, max_tokens=900, temperature=1.0, extra_body={"ignore_eos": True},
        )
    assert raised.value.response.headers["retry-after"] == "1"
    service.wait_idle()
    message = client.request("still served", Options(max_tokens=2))
    assert service.stub.Generate(message, timeout=60).finish.reason == pb.FINISH_REASON_LENGTH

"""OpenAI's own client against the HTTP edge: every field, every refusal, whole and streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest

from cluster.ingress.auth import Unauthenticated
from cluster.ingress.checks import InvalidRequest
from cluster.ingress.errors import QueueFull
from tests.unit.ingress.http.conftest import Scripted

HELLO: Any = [{"role": "user", "content": "the fox"}]
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.mark.asyncio
async def test_a_whole_chat_has_text_counts_and_figures(scripted: Scripted) -> None:
    got = await scripted.client().chat.completions.create(model="tiny", messages=HELLO)
    assert (got.object, got.model, got.choices[0].message.content) == ("chat.completion", "tiny", scripted.text)
    assert (got.choices[0].finish_reason, got.choices[0].message.role) == ("stop", "assistant")
    usage = got.usage
    assert usage is not None
    assert usage.prompt_tokens == len(scripted.seen[0].prompt_ids)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 2
    details = usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (4, 1)
    assert usage.speculation["mean_committed_tokens"] == 2.5  # type: ignore[attr-defined]
    assert scripted.callers == ["Bearer secret"]
    assert scripted.seen[0].request_id == got.id


@pytest.mark.asyncio
async def test_every_option_of_a_chat_reaches_the_generation(scripted: Scripted) -> None:
    await scripted.client().chat.completions.create(
        model="tiny", messages=[{"role": "developer", "content": "be brief"}, *HELLO], temperature=0.5, top_p=0.9,
        seed=7, stop=["END", "x"], max_completion_tokens=9, presence_penalty=0.5, frequency_penalty=-0.5,
        logit_bias={"5": 2}, logprobs=True, top_logprobs=2, user="somebody", metadata={"a": "b"}, store=False,
        service_tier="auto", response_format={"type": "text"}, tools=[], prediction={"type": "content", "content": "a"},
        extra_body={"top_k": 11, "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 2, "stop_token_ids": [9],
                    "ignore_eos": True, "include_stop": True, "speculation": {"lookahead_tokens": 3}},
    )
    (seen,) = scripted.seen
    sampling = seen.sampling
    assert (sampling.temperature, round(sampling.top_p, 5), sampling.seed, sampling.top_k) == (0.5, 0.9, 7, 11)
    assert (seen.stop_strings, seen.max_tokens, seen.stop_ids) == (("END", "x"), 9, frozenset({9}))
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.logit_bias) == (0.5, -0.5, ((5, 2.0),))
    assert (round(sampling.min_p, 5), round(sampling.repetition_penalty, 5), sampling.min_tokens) == (0.1, 1.2, 2)
    assert (sampling.num_logprobs, seen.include_stop, seen.lookahead) == (2, True, 3)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("asked", "kind", "source"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type": "object"}'),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}},
         "json_schema", '{"type": "null"}'),
        ({"extra_body": {"grammar": {"kind": "choice", "text": '["a", "b"]'}}}, "choice", '["a", "b"]'),
        ({"extra_body": {"grammar": {"kind": "regex", "text": "a+"}}}, "regex", "a+"),
    ],
)
async def test_the_form_of_a_text_reaches_the_generation(
    scripted: Scripted, asked: dict[str, Any], kind: str, source: str
) -> None:
    await scripted.client().chat.completions.create(model="tiny", messages=HELLO, **asked)
    grammar = scripted.seen[0].sampling.grammar
    assert grammar is not None
    assert (grammar.kind, grammar.source, grammar.vocabulary) == (kind, source, "fingerprint")


@pytest.mark.asyncio
async def test_streamed_pieces_add_up_to_the_whole_and_counts_come_last(scripted: Scripted) -> None:
    stream = await scripted.client().chat.completions.create(
        model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}, logprobs=True,
    )
    events = [event async for event in stream]
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(event.choices[0].delta.content or "" for event in events if event.choices) == scripted.text
    assert [e.choices[0].finish_reason for e in events if e.choices][-2:] == [None, "stop"]
    assert events[-1].choices == []
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == 7
    assert {event.id for event in events} == {events[0].id}
    tokens = [each.token for e in events for c in e.choices if c.logprobs for each in c.logprobs.content or []]
    assert "".join(tokens) == scripted.text
    assert scripted.num_open == 0


@pytest.mark.asyncio
async def test_n_choices_have_seeds_of_their_own_and_count_the_prompt_once(scripted: Scripted) -> None:
    client = scripted.client()
    whole = await client.chat.completions.create(model="tiny", messages=HELLO, n=3, seed=5, temperature=1)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert sorted(each.sampling.seed or 0 for each in scripted.seen) == [5, 6, 7]
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(scripted.seen[0].prompt_ids), 21)
    texts = ["", "", ""]
    async for event in await client.chat.completions.create(model="tiny", messages=HELLO, n=3, stream=True):
        for choice in event.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [scripted.text] * 3


@pytest.mark.asyncio
async def test_a_failure_of_one_choice_ends_the_others(scripted: Scripted) -> None:
    scripted.error, scripted.error_after = RuntimeError("secret detail"), 2
    with pytest.raises(openai.InternalServerError) as raised:
        await scripted.client().chat.completions.create(model="tiny", messages=HELLO, n=3)
    assert "secret" not in str(raised.value)
    assert scripted.num_open == 0


@pytest.mark.asyncio
async def test_a_failure_in_mid_stream_is_an_error_of_the_client(scripted: Scripted) -> None:
    scripted.error, scripted.error_after = QueueFull(3), 2
    stream = await scripted.client().chat.completions.create(model="tiny", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="the queue is full"):
        [event async for event in stream]
    assert scripted.num_open == 0


@pytest.mark.asyncio
async def test_a_failure_before_the_first_piece_is_a_status(scripted: Scripted) -> None:
    scripted.error = QueueFull(3, 1.5)
    with pytest.raises(openai.RateLimitError) as raised:
        await scripted.client().chat.completions.create(model="tiny", messages=HELLO, stream=True)
    assert raised.value.response.headers["retry-after"] == "2"
    assert (raised.value.type, raised.value.code) == ("rate_limit_error", "rate_limit_exceeded")


@pytest.mark.asyncio
async def test_completions_take_texts_and_ids_and_give_logprobs(scripted: Scripted) -> None:
    client = scripted.client()
    got = await client.completions.create(model="tiny", prompt=["the", "fox"], n=2, logprobs=2, max_tokens=5)
    assert [choice.text for choice in got.choices] == [scripted.text] * 4
    logprobs = got.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == scripted.text
    assert logprobs.text_offset is not None
    assert logprobs.text_offset[0] == 0
    assert len((logprobs.top_logprobs or [])[0]) == 2
    assert got.usage is not None
    assert got.usage.prompt_tokens == sum(len(each.prompt_ids) for each in scripted.seen[::2])
    await client.completions.create(model="tiny", prompt=[5, 6, 7])
    assert scripted.seen[-1].prompt_ids.tolist() == [5, 6, 7]
    stream = await client.completions.create(model="tiny", prompt="the", stream=True)
    assert "".join([event.choices[0].text async for event in stream]) == scripted.text


REFUSED: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"model": "other"}, 404, "model", "the model 'other' is not served here: ask for 'tiny'"),
    ({"temperature": 9}, 400, "temperature", "temperature is 9: choose a value in [0, 5]"),
    ({"stop": [""]}, 400, "stop", "stop holds an empty string: remove it"),
    ({"seed": -1}, 400, "seed", "seed is -1: use at least 0"),
    ({"n": 0}, 400, "n", "n is wrong: input should be greater than or equal to 1"),
    ({"n": True}, 400, "n", "n is wrong: input should be a valid integer"),
    ({"messages": []}, 400, "messages", "messages is wrong"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role", "input should be 'system'"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content", "messages[0] has no content: set it"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400,
     "messages[0].content", "holds a part of type 'image_url'"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, 400, "messages", "(no tools)"),
    ({"messages": [{"role": "user", "content": "fox " * 900}]}, 400, "messages", "does not fit the context of 600"),
    ({"max_tokens": 65}, 400, "max_tokens", "max_tokens is 65: the limit is 64"),
    ({"max_tokens": 2**40}, 400, "max_tokens", "max_tokens is wrong"),
    ({"max_tokens": 5, "max_completion_tokens": 5}, 400, "max_tokens", "both set"),
    ({"top_logprobs": 3}, 400, "top_logprobs", "set logprobs to true"),
    ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "top_logprobs is 21: the limit is 20"),
    ({"logit_bias": {"the": 1}}, 400, "logit_bias", "has the key 'the': use token ids"),
    ({"logit_bias": {"4000": 1}}, 400, "logit_bias", "logit_bias holds token id 4000"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options", "although stream is false"),
    ({"tools": [WEATHER]}, 400, "tools", "this model's chat template knows no tools: drop them"),
    ({"tool_choice": "auto"}, 400, "tool_choice", "without tools"),
    ({"reasoning_effort": "low"}, 400, "reasoning_effort", "reasoning_effort is not supported"),
    ({"functions": [{"name": "f"}]}, 400, "functions", "use tools"),
    ({"extra_body": {"nonsense": 1}}, 400, "nonsense", "nonsense is no field that this server knows: drop it"),
    ({"extra_body": {"speculation": {"lookahead_tokens": 99}}}, 400, "speculation.lookahead_tokens", "the limit is 8"),
    ({"extra_body": {"speculation": {"depth": 9}}}, 400, "speculation.depth", "no field that this server knows"),
]


@pytest.mark.parametrize(("change", "status", "param", "sentence"), REFUSED)
@pytest.mark.asyncio
async def test_every_mistake_is_one_sentence_in_openais_shape(
    scripted: Scripted, change: dict[str, Any], status: int, param: str | None, sentence: str
) -> None:
    asked = {"model": "tiny", "messages": HELLO} | change
    with pytest.raises(openai.APIStatusError) as raised:
        await scripted.client().chat.completions.create(**asked)
    error = raised.value
    assert (error.status_code, error.param, error.type) == (status, param, "invalid_request_error")
    body: Any = error.body
    assert sentence in body["message"]
    assert "\n" not in body["message"]
    assert scripted.num_open == 0


@pytest.mark.asyncio
async def test_a_prompt_too_long_has_the_code_that_clients_look_for(scripted: Scripted) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await scripted.client().completions.create(model="tiny", prompt="fox " * 900)
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "prompt")


@pytest.mark.asyncio
async def test_what_is_no_json_and_what_is_no_path(scripted: Scripted) -> None:
    client = scripted.client()
    http: Any = client._client  # the raw one
    path = "/v1/chat/completions"
    as_json, as_text = {"content-type": "application/json"}, {"content-type": "text/plain"}
    cases: list[tuple[str, str, dict[str, Any], int, str]] = [
        ("POST", path, {"content": b"{", "headers": as_json}, 400, "the body is not JSON"),
        ("POST", path, {"content": b"[]", "headers": as_json}, 400, "the body is no JSON object"),
        ("POST", path, {"content": b"{}", "headers": as_text}, 400, "content-type: application/json"),
        ("GET", path, {}, 405, "GET is not for"),
        ("POST", "/v1/embeddings", {"json": {}}, 404, "/v1/embeddings is no path of this server"),
    ]
    for method, path, more, status, sentence in cases:
        response = await http.request(method, f"http://here{path}", **more)
        assert response.status_code == status, path
        assert sentence in response.json()["error"]["message"]


@pytest.mark.asyncio
async def test_models_and_health(scripted: Scripted) -> None:
    client = scripted.client()
    assert [model.id async for model in await client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).owned_by == "outrider"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")
    http: Any = client._client
    response: httpx2.Response = await http.get("http://here/health")
    assert response.json() == {"status": "ok", "model": "tiny", "running": 3}


@pytest.mark.asyncio
async def test_the_callers_trace_goes_on_to_the_generation(scripted: Scripted) -> None:
    message: Any = {"role": "user", "content": "Hi"}
    client, asked = scripted.client(), {"model": "tiny", "messages": [message]}
    http: Any = client._client
    for path, body in (("chat/completions", asked | {"n": 2}), ("completions", {"model": "tiny", "prompt": ["a", "b"]}),
                       ("outrider/generate", asked), ("chat/completions", asked | {"stream": True})):
        scripted.headers.clear()
        await http.post(f"http://here/v1/{path}", json=body, headers={"Traceparent": "00-1-2-01"})
        assert scripted.headers, path
        assert {each["traceparent"] for each in scripted.headers} == {"00-1-2-01"}, path


@pytest.mark.asyncio
async def test_a_caller_who_is_not_admitted_is_told_before_anything_is_read(scripted: Scripted) -> None:
    scripted.refuse = Unauthenticated("no token came")
    with pytest.raises(openai.AuthenticationError, match="no token came") as raised:
        await scripted.client().chat.completions.create(model="other", messages=[])
    assert raised.value.code == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        await scripted.client().models.list()
    assert scripted.seen == []


# --- the live page --------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_live_events_tell_tokens_times_and_the_end(scripted: Scripted) -> None:
    http: Any = scripted.client()._client
    body = {"model": "tiny", "messages": HELLO}
    response = await http.post("http://here/v1/outrider/generate", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *found, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    events = [json.loads(each) for each in found]
    assert done == "[DONE]"
    assert "".join(event["text"] for event in events) == scripted.text
    assert bytes(b for event in events for token in event["tokens"] for b in token["bytes"]).decode() == scripted.text
    assert [call["kind"] for event in events for call in event["calls"]] == ["propose"]
    assert events[-1]["finish"]["reason"] == "stop_token"
    refused = await http.post("http://here/v1/outrider/generate", json={**body, "temperature": 9})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")


@pytest.mark.asyncio
async def test_the_page_runs_nothing_but_its_own_files(scripted: Scripted) -> None:
    http: Any = scripted.client()._client
    index = await http.get("http://here/")
    assert "default-src 'none'; script-src 'self'" in index.headers["content-security-policy"]
    for name in re.findall(r'(?:href|src)="(/[^"]+)"', index.text):
        response = await http.get(f"http://here{name}")
        assert response.status_code == 200
        assert "http" not in response.text.replace("http://www.w3.org/2000/svg", ""), "nothing comes from elsewhere"
    assert (await http.get("http://here/page/__init__.py")).status_code == 404
    assert (await http.get("http://here/v1/outrider/status")).json()["model"] == "tiny"


# --- tools ----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_calls_of_tools_are_taken_out_of_the_text(calling: Callable[[str], Scripted]) -> None:
    scripted = calling(f"look: {CALL}\n{CALL}")
    asked: Any = {"model": "tiny", "messages": HELLO, "tools": [WEATHER]}
    whole = await scripted.client().chat.completions.create(**asked)
    choice = whole.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "look: ")
    calls: Any = choice.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", '{"city": "Rome"}')] * 2
    assert len({call.id for call in calls}) == 2
    text, found = "", []
    async for event in await scripted.client().chat.completions.create(**asked, stream=True):
        delta = event.choices[0].delta
        text += delta.content or ""
        found += [(call.index, call.function and call.function.name) for call in delta.tool_calls or []]
        reason = event.choices[0].finish_reason
    assert (text, found, reason) == ("look: ", [(0, "weather"), (1, "weather")], "tool_calls")
    only = await scripted.client().chat.completions.create(**asked, parallel_tool_calls=False)
    assert len(only.choices[0].message.tool_calls or []) == 1


@pytest.mark.asyncio
async def test_the_template_shows_tools_and_earlier_calls(calling: Callable[[str], Scripted]) -> None:
    scripted = calling("hi")
    client = scripted.client()
    history: Any = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "sun"},
    ]
    await client.chat.completions.create(model="tiny", messages=history, tools=[WEATHER])
    prompt = scripted.codec._tokenizer.decode(scripted.seen[-1].prompt_ids)
    assert "tool weather in <tool_call>" in prompt
    assert "assistant\nweather(Rome)" in prompt
    assert "tool\nsun" in prompt
    await client.chat.completions.create(model="tiny", messages=HELLO, tools=[WEATHER], tool_choice="none")
    assert "weather" not in scripted.codec._tokenizer.decode(scripted.seen[-1].prompt_ids)


@pytest.mark.asyncio
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_a_forced_call_is_told_piece_by_piece(calling: Callable[[str], Scripted], choice: Any) -> None:
    scripted = calling(CALL)
    asked: Any = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], "tool_choice": choice}
    whole = (await scripted.client().chat.completions.create(**asked)).choices[0]
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    (call,) = whole.message.tool_calls or []
    assert (call.type, call.type == "function" and call.function.arguments) == ("function", '{"city": "Rome"}')
    grammar = scripted.seen[0].sampling.grammar
    assert grammar
    assert '\\"weather\\"' in grammar.source
    pieces: list[Any] = []
    async for event in await scripted.client().chat.completions.create(**asked, stream=True):
        assert not event.choices[0].delta.content
        pieces += event.choices[0].delta.tool_calls or []
    assert (pieces[0].index, pieces[0].function.name, bool(pieces[0].id)) == (0, "weather", True)
    assert [piece.id for piece in pieces[1:]] == [None] * (len(pieces) - 1)
    assert len(pieces) > 1
    assert "".join(piece.function.arguments for piece in pieces) == '{"city": "Rome"}'
    assert event.choices[0].finish_reason == "tool_calls"


@pytest.mark.asyncio
async def test_a_forced_call_that_is_cut_short_is_no_whole_call(calling: Callable[[str], Scripted]) -> None:
    scripted = calling(CALL[:50])
    whole = await scripted.client().chat.completions.create(
        model="tiny", messages=HELLO, tools=[WEATHER], tool_choice="required")
    assert whole.choices[0].finish_reason == "stop"
    assert whole.choices[0].message.tool_calls


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("more", "param", "says"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice",
         "tool_choice names 'other', which is not among tools: choose one of weather"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice",
         "tool_choice forces a call, so response_format cannot hold: drop one of the two"),
        ({"tool_choice": "required", "extra_body": {"ignore_eos": True}}, "ignore_eos", "drop ignore_eos"),
        ({"tool_choice": "required", "tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"type": "string"}}}]},
         "tools[0].function.parameters", "arguments are an object"),
    ],
)
async def test_what_cannot_be_forced_is_refused(
    calling: Callable[[str], Scripted], more: dict[str, Any], param: str, says: str
) -> None:
    asked: Any = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], **more}
    with pytest.raises(openai.BadRequestError, match=says) as raised:
        await calling("hi").client().chat.completions.create(**asked)
    assert raised.value.param == param


@pytest.mark.asyncio
async def test_a_grammar_that_cannot_be_made_of_tools_is_said_of_them(calling: Callable[[str], Scripted]) -> None:
    scripted = calling("hi")
    scripted.error = InvalidRequest("ebnf cannot be used: too complex")
    with pytest.raises(openai.BadRequestError, match="a schema among tools cannot be used: too complex") as raised:
        await scripted.client().chat.completions.create(
            model="tiny", messages=HELLO, tools=[WEATHER], tool_choice="required")
    assert raised.value.param == "tools"

"""From a checked body to the requests that gRPC would have brought: one per choice."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cluster.ingress.checks import MAX_NAMED, InvalidRequest
from cluster.ingress.http.fields import ChatBody, Common, CompletionBody, Message, NamedTool
from cluster.ingress.http.forced import MAX_CALLS, Forced, arguments_schema
from cluster.ingress.http.grammar import Form, grammar_of, set_grammar
from cluster.ingress.http.tools import ToolFormat
from cluster.ingress.tokenizing import TextCodec
from cluster.rpc import outrider_pb2 as pb

_SEEDS = 2**63
MAX_COMPLETION_LOGPROBS = 5
_SAME = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
         "min_tokens", "ignore_eos", "include_stop")


@dataclass(frozen=True, slots=True)
class Asks:
    """What one HTTP request asks for."""

    requests: list[pb.GenerateRequest]  # one per choice
    num_per_prompt: int  # choices of each prompt, which come one after another


def chat_asks(body: ChatBody, codec: TextCodec, request_id: str) -> Asks:
    """Requests of a conversation, whose ids are rendered once. Raises `InvalidRequest`."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidRequest("max_tokens and max_completion_tokens are both set: drop max_tokens", "max_tokens")
    tools = chat_tools(body, codec)
    request = _common(body, body.max_completion_tokens if body.max_tokens is None else body.max_tokens)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs is set without logprobs: set logprobs to true", "top_logprobs")
    if body.logprobs:
        request.sampling.num_logprobs = body.top_logprobs or 0
    form, forced = grammar_of(body.response_format, body.grammar), forced_calls(body, codec)
    if forced is not None:
        if form is not None:
            raise InvalidRequest(f"tool_choice forces a call, so {form.param} cannot hold: drop one of the two",
                                 "tool_choice")
        if body.ignore_eos:
            raise InvalidRequest("tool_choice forces a call, which ends by itself: drop ignore_eos", "ignore_eos")
        form = Form("ebnf", forced.grammar(), "tools")
    set_grammar(request, form)
    ids = codec.encode_messages([_turn(index, message) for index, message in enumerate(body.messages)], tools or None)
    request.token_ids.ids.extend(ids)
    return _numbered([request], body, request_id)


def completion_asks(body: CompletionBody, request_id: str) -> Asks:
    """Requests of one or several prompts. Raises `InvalidRequest`."""
    common = _common(body, body.max_tokens)
    if body.logprobs is not None:
        if not 0 <= body.logprobs <= MAX_COMPLETION_LOGPROBS:
            raise InvalidRequest(f"logprobs is {body.logprobs}: choose 0 to {MAX_COMPLETION_LOGPROBS}", "logprobs")
        common.sampling.num_logprobs = body.logprobs
    set_grammar(common, grammar_of(None, body.grammar))
    requests: list[pb.GenerateRequest] = []
    for prompt in body.prompt:
        request = pb.GenerateRequest()
        request.CopyFrom(common)
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.token_ids.ids.extend(prompt)
        requests.append(request)
    return _numbered(requests, body, request_id)


def chat_tools(body: ChatBody, codec: TextCodec) -> list[dict[str, Any]]:
    """The tools that the model is shown, as templates read them. Raises `InvalidRequest`."""
    if body.tool_choice is not None and body.tool_choice != "none" and not body.tools:
        raise InvalidRequest("tool_choice is set without tools: drop it or send tools", "tool_choice")
    if not body.tools or body.tool_choice == "none":
        return []
    if codec.tool_format is ToolFormat.NONE:
        raise InvalidRequest("this model's chat template knows no tools: drop them", "tools", "unsupported_parameter")
    return [tool.model_dump(exclude_none=True) for tool in body.tools]


def forced_calls(body: ChatBody, codec: TextCodec) -> Forced | None:
    """What `tool_choice` leaves no choice about; None: the model may call a tool or not. Raises `InvalidRequest`."""
    choice, tools = body.tool_choice, list(enumerate(body.tools or ()))
    if isinstance(choice, NamedTool):
        tools = [(i, tool) for i, tool in tools if tool.function.name == choice.function.name][:1]
        if not tools:
            known = ", ".join(tool.function.name for tool in (body.tools or ())[:MAX_NAMED])
            raise InvalidRequest(f"tool_choice names {choice.function.name[:64]!r}, which is not among tools: "
                                 f"choose one of {known}", "tool_choice")
    elif choice != "required":
        return None
    return Forced(
        [(tool.function.name, arguments_schema(i, tool.function.parameters)) for i, tool in tools], codec.tool_format,
        num_calls=1 if isinstance(choice, NamedTool) or body.parallel_tool_calls is False else MAX_CALLS,
    )


def _numbered(requests: Iterable[pb.GenerateRequest], body: Common, request_id: str) -> Asks:
    """`n` of each. With a seed, choice i of a prompt has the text that seed + i gives alone."""
    count = body.n or 1
    numbered: list[pb.GenerateRequest] = []
    for request in requests:
        for choice in range(count):
            each = pb.GenerateRequest()
            each.CopyFrom(request)
            each.request_id = request_id if len(numbered) == 0 else f"{request_id}-{len(numbered)}"
            if body.seed is not None:
                each.sampling.seed = body.seed if body.seed < 0 else (body.seed + choice) % _SEEDS
            numbered.append(each)
    return Asks(numbered, count)


def _common(body: Common, max_tokens: int | None) -> pb.GenerateRequest:
    """What needs no prompt. Ranges are checked with those of gRPC requests."""
    request = pb.GenerateRequest()
    sampling = request.sampling
    for name in _SAME:
        if (value := getattr(body, name)) is not None:
            setattr(sampling, name, value)
    if max_tokens is not None:
        sampling.max_tokens = max_tokens
    sampling.stop_strings.extend(body.stop)
    sampling.stop_token_ids.extend(body.stop_token_ids)
    for key, bias in (body.logit_bias or {}).items():
        sampling.logit_bias[_token_id(key)] = bias
    asked = body.speculation
    if asked is not None:
        for name in ("enabled", "lookahead_tokens", "lossy"):
            if (value := getattr(asked, name)) is not None:
                setattr(request.speculation, name, value)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is set although stream is false: drop one of the two", "stream_options")
    return request


def _token_id(key: str) -> int:
    digits = key.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise InvalidRequest(f"logit_bias has the key {key[:32]!r}: use token ids", "logit_bias")
    return int(key)


def _turn(index: int, message: Message) -> dict[str, Any]:
    """A message as chat templates read it."""
    role = "system" if message.role == "developer" else message.role
    turn: dict[str, Any] = {"role": role, "content": message.content or ""}
    if message.name is not None:
        turn["name"] = message.name
    where = f"messages[{index}]"
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        if role != "assistant":
            raise InvalidRequest(f"{where} has tool_calls but role {role!r}: only the assistant calls tools", where)
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {
                "name": call.function.name, "arguments": _arguments(call.function.arguments, f"{where}.tool_calls"),
            }}
            for call in message.tool_calls
        ]
    elif message.content is None:
        raise InvalidRequest(f"{where} has no content: set it", f"{where}.content")
    return turn


def _arguments(text: str, where: str) -> dict[str, Any]:
    """Templates want an object, OpenAI sends its JSON."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest(f"{where} holds arguments that are no JSON object: mend them", where)
    return found

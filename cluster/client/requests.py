"""From Python values to the request on the wire."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.rpc import outrider_pb2 as pb


@dataclass(frozen=True, slots=True)
class Raw:
    """Text to continue as it is, without a chat template."""

    text: str


# A user's turn; text to continue; token ids; or turns, each with `role` and `content`.
Prompt = str | Raw | Sequence[int] | Sequence[Mapping[str, str]]

_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
    "max_tokens", "min_tokens", "include_stop", "ignore_eos", "num_logprobs", "json_schema", "json_object", "regex",
    "ebnf",
)


@dataclass(frozen=True, slots=True)
class Options:
    """What a request may ask for, by the names of the contract; None leaves a choice to the server."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    lookahead_tokens: int | None = None
    speculation: bool = True
    lossy: bool | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    include_stop: bool | None = None
    ignore_eos: bool | None = None
    num_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    # What the whole text has to be; at most one of these.
    json_schema: str | None = None
    json_object: bool | None = None
    regex: str | None = None
    ebnf: str | None = None
    choice: tuple[str, ...] = ()
    request_id: str | None = None


def request_of(prompt: Prompt, options: Options | None = None) -> pb.GenerateRequest:
    """The message. Raises `ValueError` for a number that its field cannot hold."""
    asked = options or Options()
    # With an identity of its own, all attempts of a request are one in the server's logs.
    message = pb.GenerateRequest(request_id=asked.request_id or secrets.token_hex(8))
    match prompt:
        case str():
            message.chat.messages.add(role="user", content=prompt)
        case Raw():
            message.text = prompt.text
        case _:
            for part in prompt:
                if isinstance(part, Mapping):
                    message.chat.messages.add(role=part["role"], content=part["content"])
                else:
                    message.token_ids.ids.append(part)
    sampling = message.sampling
    for name in _SAMPLING:
        if (value := getattr(asked, name)) is not None:
            setattr(sampling, name, value)
    sampling.stop_strings.extend(asked.stop)
    sampling.stop_token_ids.extend(asked.stop_token_ids)
    for token_id, bias in asked.logit_bias:
        sampling.logit_bias[token_id] = bias
    if asked.choice:
        sampling.choice.texts.extend(asked.choice)
    if not asked.speculation:
        message.speculation.enabled = False
    elif asked.lookahead_tokens is not None:
        message.speculation.lookahead_tokens = asked.lookahead_tokens
    if asked.lossy is not None:
        message.speculation.lossy = asked.lossy
    return message


def is_repeatable(message: pb.GenerateRequest) -> bool:
    """Whether the same request gives the same text again: greedy or seeded, and not lossy."""
    sampling = message.sampling
    is_greedy = sampling.HasField("temperature") and sampling.temperature == 0
    return (is_greedy or sampling.HasField("seed")) and not message.speculation.lossy

"""What a request may ask for, and the one sentence a client reads when it asks for something else."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

MIN_TEMPERATURE = 0.001  # below it float32 logits overflow; 0 is greedy
MAX_TEMPERATURE = 5.0
MAX_LOGPROBS = 20
MAX_STOP_STRING_CHARS = 256  # text of that length may be held back
MAX_STOP_IDS = 64
MAX_BIASES = 1024
MAX_CHARS_PER_TOKEN = 32  # on average; text has about 4
MAX_NAMED = 8  # entries of a long list that a message names
MAX_REQUEST_ID_CHARS = 128
MAX_GRAMMAR_BYTES = 65536
ROLES = ("system", "user", "assistant", "tool")


class InvalidRequest(ValueError):
    """The client's mistake. `str(error)` is one sentence that names the fix."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        """`param`: the field at fault; `code`: a word for programs. Both are what HTTP clients read."""
        super().__init__(message)
        self.param = param
        self.code = code


PROMPT = "the prompt"  # as a field at fault
CONTEXT_LENGTH = "context_length_exceeded"  # clients look for this code


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What a request is checked against. Sizes in tokens."""

    max_context_tokens: int  # prompt and output together, of the target
    max_tokens: int
    max_prompt_tokens: int | None = None  # None: the context is the only limit
    max_lookahead: int = 16
    max_stop_strings: int = 16


def check_known_fields(message: Message) -> None:
    """Refuse fields this server does not know: to ignore them would silently change what was asked."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        numbers = ", ".join(str(unknown[i].field_number) for i in range(min(len(unknown), MAX_NAMED)))
        raise InvalidRequest(
            f"{message.DESCRIPTOR.name} holds fields this server does not know (numbers {numbers}): "
            "drop them or use a newer server"
        )
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for child in value if not isinstance(value, Message) else (value,):
            check_known_fields(child)


def check_range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> float:
    """`value` when it lies in [low, high], or in (low, high] with `open_low`; NaN never does."""
    inside = (low < value if open_low else low <= value) and value <= high
    if not inside:
        left = "(" if open_low else "["
        raise InvalidRequest(f"{name} is {value:g}: choose a value in {left}{low:g}, {high:g}]", name)
    return value


def check_temperature(value: float) -> float:
    """0, or a value at which float32 logits neither overflow nor lose their order."""
    check_range("temperature", value, 0, MAX_TEMPERATURE)
    if 0 < value < MIN_TEMPERATURE:
        raise InvalidRequest(
            f"temperature is {value:g}: use 0 for greedy decoding or at least {MIN_TEMPERATURE:g}", "temperature"
        )
    return value


def check_count(name: str, value: int, low: int, high: int | None = None) -> int:
    """`value` when it lies in [low, high]."""
    if value < low:
        raise InvalidRequest(f"{name} is {value}: use at least {low}", name)
    if high is not None and value > high:
        raise InvalidRequest(f"{name} is {value}: the limit is {high}", name)
    return value


def check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    """Every id belongs to the vocabulary."""
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"{name} holds token id {token_id}: this model's vocabulary has ids 0 to {vocab_size - 1}",
                name,
            )


def check_biases(biases: Collection[tuple[int, float]], vocab_size: int) -> None:
    """Few enough biases, of known ids, each in [-100, 100]."""
    check_size("logit_bias", len(biases), MAX_BIASES)
    check_ids("logit_bias", (token_id for token_id, _ in biases), vocab_size)
    for token_id, bias in biases:
        if not math.isfinite(bias) or abs(bias) > 100:
            raise InvalidRequest(
                f"logit_bias of token id {token_id} is {bias:g}: choose a value in [-100, 100]", "logit_bias"
            )


def check_stop_strings(stops: Collection[str], max_stop_strings: int) -> None:
    """Few enough stop strings, none empty or overlong."""
    check_size("stop_strings", len(stops), max_stop_strings)
    for stop in stops:
        if not stop:
            raise InvalidRequest("stop_strings holds an empty string: remove it", "stop_strings")
        if len(stop) > MAX_STOP_STRING_CHARS:
            raise InvalidRequest(
                f"stop_strings holds a string of {len(stop)} characters: the limit is {MAX_STOP_STRING_CHARS}",
                "stop_strings",
            )


def check_size(name: str, size: int, limit: int) -> None:
    """A repeated field has at most `limit` entries."""
    if size > limit:
        raise InvalidRequest(f"{name} has {size} entries: the limit is {limit}", name)


def check_request_id(request_id: str) -> str:
    """Short and printable: it appears in logs."""
    if len(request_id) > MAX_REQUEST_ID_CHARS:
        raise InvalidRequest(
            f"request_id has {len(request_id)} characters: the limit is {MAX_REQUEST_ID_CHARS}"
        )
    if not request_id.isprintable():
        raise InvalidRequest("request_id holds control characters: use printable ones")
    return request_id


def check_prompt_tokens(num_tokens: int, limits: RequestLimits, *, at_least: bool = False) -> None:
    """Raises `InvalidRequest` for a prompt of (`at_least`) so many tokens that is longer than this server takes."""
    if limits.max_prompt_tokens is not None and num_tokens > limits.max_prompt_tokens:
        raise InvalidRequest(
            f"the prompt has {'at least ' if at_least else ''}{num_tokens} tokens but this server takes at most "
            f"{limits.max_prompt_tokens}: shorten it", PROMPT, CONTEXT_LENGTH,
        )


def check_prompt_chars(num_chars: int, limits: RequestLimits) -> None:
    """Refuse a text before it is tokenised, which takes a second for some megabytes, if it cannot be short enough."""
    most = MAX_CHARS_PER_TOKEN * (limits.max_prompt_tokens or limits.max_context_tokens)
    if num_chars > most:
        raise InvalidRequest(
            f"the prompt has {num_chars} characters but this server takes at most {most}: shorten it",
            PROMPT, CONTEXT_LENGTH,
        )


def fit_max_tokens(
    num_prompt_tokens: int, asked: int | None, default: int, limits: RequestLimits
) -> int:
    """Tokens to generate: what was asked, if there is room for it, or as much of the default as fits."""
    check_prompt_tokens(num_prompt_tokens, limits)
    room = limits.max_context_tokens - num_prompt_tokens
    if room <= 0:
        what = "leaves no room for a token in" if room == 0 else "does not fit"
        raise InvalidRequest(
            f"the prompt has {num_prompt_tokens} tokens and {what} the context of "
            f"{limits.max_context_tokens} tokens: shorten it", PROMPT, CONTEXT_LENGTH,
        )
    if asked is None:
        return min(default, limits.max_tokens, room)
    check_count("max_tokens", asked, 1, limits.max_tokens)
    if asked > room:
        raise InvalidRequest(
            f"max_tokens is {asked} but a prompt of {num_prompt_tokens} tokens leaves room for {room} in the "
            f"context of {limits.max_context_tokens}: lower max_tokens or shorten the prompt",
            "max_tokens", CONTEXT_LENGTH,
        )
    return asked

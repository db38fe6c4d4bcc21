"""Bodies of the OpenAI API as this server takes them. Unknown fields are refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

MAX_CHOICES = 16  # each is a sequence of its own
MAX_PROMPTS = 64

Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
# Fields of OpenAI's that change nothing in what this server would answer.
IGNORED = frozenset({
    "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prediction",
})
# Fields of OpenAI's that this server cannot honour: the values that ask for nothing, and what to do instead.
UNSUPPORTED: Mapping[str, tuple[Sequence[object], str]] = {
    "store": ((False,), "nothing is stored here; drop it"),
    "service_tier": (("auto", "default"), "there is one tier; drop it"),
    "modalities": ((["text"],), 'only ["text"] is served'),
    "audio": ((), "only text is served; drop it"),
    "functions": (([],), "use tools"),
    "function_call": (("none",), "use tool_choice"),
    "web_search_options": ((), "this server does not search; drop it"),
    "reasoning_effort": (("none",), "it cannot be steered here; drop it"),
    "verbosity": ((), "it cannot be steered here; drop it"),
    "best_of": ((1,), "use n"),
    "echo": ((False,), "the prompt is not sent back; drop it"),
    "suffix": (("",), "only text after a prompt is made; drop it"),
}


def _refuse(message: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{why}", {"why": message})


def _text(value: object) -> object:
    """The text of a message: a string, or parts of which only text is served."""
    if not isinstance(value, list):
        return value
    texts: list[str] = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        key = kind if kind in ("text", "refusal") else None
        if key is None or not isinstance(part.get(key), str) or part.keys() != {"type", key}:
            raise _refuse(f'holds a part of type {str(kind)[:32]!r}: only {{"type": "text", "text": ...}} is served')
        texts.append(part[key])
    return "".join(texts)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else [] if value is None else value


def _prompts(value: object) -> object:
    """One or several prompts, each a string or token ids."""
    if isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int)):
        value = [value]
    if not isinstance(value, list) or not value:
        raise _refuse("is empty: give a string, token ids, or a list of either")
    for each in value:
        is_ids = isinstance(each, list) and all(type(i) is int and -(2**31) <= i < 2**31 for i in each)
        if not isinstance(each, str) and not is_ids:
            raise _refuse("holds something that is neither a string nor a list of token ids")
    return value


class Body(BaseModel):
    """Unknown keys are mistakes; numbers are numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class FunctionCall(Body):
    name: str
    arguments: str  # JSON


class ToolCall(Body):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None  # some clients send deltas back


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_text)] = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None  # what clients send back of an answer
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class Function(Body):
    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Body):
    name: str = "schema"
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class GrammarField(Body):
    """Our own: what the text must match."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "ebnf"]
    text: str = ""


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class Speculation(Body):
    """Our own: overrides of the server's speculation, as in the gRPC contract."""

    enabled: bool | None = None
    lookahead_tokens: Int32 | None = None
    lossy: bool | None = None


class Common(Body):
    """What both kinds of completion take. None: the server's default."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Int64 | None = None
    stop: Annotated[list[str], BeforeValidator(_listed)] = []
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: Int32 | None = None
    # Beyond OpenAI's, by the names of the gRPC contract:
    top_k: Int32 | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Int32 | None = None
    stop_token_ids: list[Int32] = []
    ignore_eos: bool | None = None
    include_stop: bool | None = None
    grammar: GrammarField | None = None
    speculation: Speculation | None = None


class ChatBody(Common):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: Int32 | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None


class CompletionBody(Common):
    prompt: Annotated[list[str | list[Int32]], BeforeValidator(_prompts), Field(max_length=MAX_PROMPTS)]
    logprobs: Int32 | None = None

"""From the chunks of a generation to OpenAI's objects, whole or in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from google.protobuf import json_format

from cluster.ingress.http.failures import Json
from cluster.ingress.http.forced import Forced, ForcedReader
from cluster.ingress.http.tools import Call, CallReader, More, ToolFormat
from cluster.ingress.spelling import Spelling
from cluster.rpc import outrider_pb2 as pb

_REASONS = {
    pb.FINISH_REASON_LENGTH: "length", pb.FINISH_REASON_STOP_TOKEN: "stop", pb.FINISH_REASON_STOP_STRING: "stop",
}


@dataclass(frozen=True, slots=True)
class Head:
    """What all pieces of one answer carry."""

    id: str
    created: int  # seconds since 1970
    model: str
    fingerprint: str

    def wrap(self, kind: str, choices: Sequence[Json], **more: object) -> Json:
        """An object of `kind` with these choices."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model,
                "system_fingerprint": self.fingerprint, "choices": list(choices), **more}


@dataclass(frozen=True, slots=True)
class Reading:
    """How the chunks of a chat are read."""

    spelling: Spelling
    tool_format: ToolFormat = ToolFormat.NONE
    tool_names: tuple[str, ...] = ()
    only_one_call: bool = False
    logprobs: bool = False
    forced: Forced | None = None  # the text is calls, and nothing else

    def calls(self) -> CallReader | ForcedReader:
        """A fresh reader of calls."""
        if self.forced is not None:
            return self.forced.reader()
        return CallReader(self.tool_format, self.tool_names)


class ChatChoice:
    """One choice of a chat: its deltas, and what they add up to."""

    def __init__(self, index: int, reading: Reading) -> None:
        self._index = index
        self._reading = reading
        self._reader = reading.calls()
        self._texts: list[str] = []
        self._calls: list[Call] = []
        self._logprobs: list[Json] = []
        self._reason: str | None = None
        self._began = False

    def delta(self, chunk: pb.GenerateChunk) -> list[Json]:
        """Choices of the events that `chunk` makes: none, one, or one and the end."""
        text, calls = self._reader.push(chunk.text)
        ended = chunk.HasField("finish")
        if ended:
            rest, late = self._reader.finish()
            text, calls = text + rest, calls + late
        called = self._called(calls)
        self._texts.append(text)
        logprobs = self._chat_logprobs(chunk.tokens)
        delta: Json = {}
        if not self._began:
            delta["role"] = "assistant"
        if text or not self._began:
            delta["content"] = text
        if called:
            delta["tool_calls"] = called
        events: list[Json] = []
        if text or called or logprobs or (ended and not self._began):
            self._began = True
            events.append(self._event(delta, logprobs))
        if ended:
            is_whole = bool(self._calls) and not self._reader.is_open
            self._reason = "tool_calls" if is_whole else _REASONS.get(chunk.finish.reason)
            events.append(self._event({}, None))
        return events

    def _called(self, found: Sequence[Call | More]) -> list[Json]:
        """What a delta says of calls; they are kept for the whole message too."""
        said: list[Json] = []
        for each in found:
            if isinstance(each, More):
                last = self._calls[-1]
                self._calls[-1] = replace(last, arguments=last.arguments + each.arguments)
                said.append({"index": len(self._calls) - 1, "function": {"arguments": each.arguments}})
            elif not (self._reading.only_one_call and self._calls):
                self._calls.append(each)
                said.append({"index": len(self._calls) - 1, **_call(each)})
        return said

    def message(self) -> Json:
        """The whole choice, after its last chunk."""
        text = "".join(self._texts)
        message: Json = {"role": "assistant", "content": text if text or not self._calls else None, "refusal": None}
        if self._calls:
            message["tool_calls"] = [_call(call) for call in self._calls]
        logprobs = {"content": self._logprobs, "refusal": None} if self._reading.logprobs else None
        return {"index": self._index, "message": message, "logprobs": logprobs, "finish_reason": self._reason}

    def _event(self, delta: Json, logprobs: list[Json] | None) -> Json:
        found = {"content": logprobs, "refusal": None} if logprobs else None
        return {"index": self._index, "delta": delta, "logprobs": found, "finish_reason": self._reason}

    def _chat_logprobs(self, tokens: Iterable[pb.Token]) -> list[Json]:
        if not self._reading.logprobs:
            return []
        found = [
            {**self._spelled(token.id, token.logprob),
             "top_logprobs": [self._spelled(top.id, top.logprob) for top in token.top_logprobs]}
            for token in tokens
        ]
        self._logprobs += found
        return found

    def _spelled(self, token_id: int, logprob: float) -> Json:
        spelling = self._reading.spelling
        return {"token": spelling.text_of(token_id), "logprob": logprob, "bytes": list(spelling.bytes_of(token_id))}


class TextChoice:
    """One choice of a completion."""

    def __init__(self, index: int, spelling: Spelling, logprobs: bool) -> None:
        self._index = index
        self._spelling = spelling
        self._wants_logprobs = logprobs
        self._texts: list[str] = []
        self._tokens: list[pb.Token] = []
        self._offset = 0  # characters of the tokens' own texts before the next one
        self._offsets: list[int] = []
        self._reason: str | None = None

    def delta(self, chunk: pb.GenerateChunk) -> list[Json]:
        """Choices of the events that `chunk` makes: none or one."""
        self._texts.append(chunk.text)
        tokens = list(chunk.tokens) if self._wants_logprobs else []
        offsets: list[int] = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._spelling.text_of(token.id))
        self._tokens += tokens
        self._offsets += offsets
        if chunk.HasField("finish"):
            self._reason = _REASONS.get(chunk.finish.reason)
        elif not chunk.text and not tokens:
            return []
        return [self._choice(chunk.text, tokens, offsets)]

    def message(self) -> Json:
        """The whole choice, after its last chunk."""
        return self._choice("".join(self._texts), self._tokens, self._offsets)

    def _choice(self, text: str, tokens: Sequence[pb.Token], offsets: Sequence[int]) -> Json:
        logprobs: Json | None = None
        if self._wants_logprobs:
            name = self._spelling.text_of
            logprobs = {
                "tokens": [name(token.id) for token in tokens], "token_logprobs": [token.logprob for token in tokens],
                "top_logprobs": [{name(top.id): top.logprob for top in token.top_logprobs} for token in tokens],
                "text_offset": list(offsets),
            }
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": self._reason}


def usage(finishes: Sequence[pb.Finish], num_per_prompt: int) -> Json:
    """Counts of all choices together; a prompt counts once, however many choices it has."""
    prompts = finishes[::num_per_prompt]
    num_prompt = sum(finish.usage.prompt_tokens for finish in prompts)
    num_completion = sum(finish.usage.completion_tokens for finish in finishes)
    accepted = sum(finish.speculation.num_accepted for finish in finishes)
    drafted = sum(finish.speculation.num_drafted for finish in finishes)
    found: Json = {
        "prompt_tokens": num_prompt, "completion_tokens": num_completion, "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": sum(finish.usage.cached_tokens for finish in prompts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted,
            "reasoning_tokens": 0,
        },
    }
    if len(finishes) == 1:
        found["speculation"] = speculation_figures(finishes[0])
    return found


def speculation_figures(finish: pb.Finish) -> Json:
    """How speculation went, by the names of the gRPC contract; `lossy_policy` where the text is not exact."""
    figures: Json = json_format.MessageToDict(
        finish.speculation, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    if finish.HasField("lossy_policy"):
        figures["lossy_policy"] = finish.lossy_policy
    return figures


def _call(call: Call) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}

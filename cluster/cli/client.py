"""A gRPC client of `outrider.v1`: what `generate` and `demo` send, and what they make of the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from google.protobuf import json_format

from actors.spec import EMULATED
from cluster.edge.access import Access, reached
from cluster.rpc import outrider_pb2 as pb
from cluster.rpc import outrider_pb2_grpc

INFO_TIMEOUT_S = 30.0
MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # long prompts as token ids, many log-probabilities


@dataclass(frozen=True, slots=True)
class Options:
    """What the commands let a user choose; None leaves a choice to the server."""

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


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished generation with its timing."""

    text: str
    token_ids: tuple[int, ...]
    finish: pb.Finish
    request_id: str
    first_s: float  # from sending the request to the first token
    total_s: float  # from sending the request to the last chunk

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of the whole request."""
        return len(self.token_ids) / self.total_s if self.total_s > 0 else 0.0

    @property
    def acceptance(self) -> float | None:
        """Share of the checked draft tokens that were kept; None when none was checked."""
        figures = self.finish.speculation
        return figures.num_accepted / figures.num_drafted if figures.num_drafted else None

    def as_json(self) -> dict[str, object]:
        """Everything, as plain JSON types."""
        finish = json_format.MessageToDict(
            self.finish, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return {
            "request_id": self.request_id,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "first_token_s": round(self.first_s, 4),
            "total_s": round(self.total_s, 4),
            "tokens_per_s": round(self.tokens_per_s, 2),
            "acceptance": self.acceptance,
            **finish,
        }


def request(
    prompt: str, options: Options, *, chat: bool = True, system: str | None = None
) -> pb.GenerateRequest:
    """The message for a prompt: one user turn (after an optional system turn), or raw text to continue."""
    message = pb.GenerateRequest()
    if chat:
        if system is not None:
            message.chat.messages.add(role="system", content=system)
        message.chat.messages.add(role="user", content=prompt)
    else:
        message.text = prompt
    for name in ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens"):
        value = getattr(options, name)
        if value is not None:
            setattr(message.sampling, name, value)
    message.sampling.stop_strings.extend(options.stop)
    if not options.speculation:
        message.speculation.enabled = False
    elif options.lookahead_tokens is not None:
        message.speculation.lookahead_tokens = options.lookahead_tokens
    if options.lossy is not None:
        message.speculation.lossy = options.lossy
    return message


@contextmanager
def connect(address: str | Access) -> Iterator[outrider_pb2_grpc.OutriderStub]:
    """A stub for a service; the channel closes with the context."""
    limits = [(f"grpc.max_{way}_message_length", MAX_MESSAGE_BYTES) for way in ("send", "receive")]
    with reached(address).channel(limits) as channel:
        yield outrider_pb2_grpc.OutriderStub(channel)  # type: ignore[no-untyped-call]  # generated


def collect(
    chunks: Iterable[pb.GenerateChunk], on_chunk: Callable[[pb.GenerateChunk], None] = lambda chunk: None
) -> Completion:
    """Read a stream to its end, showing each chunk as it comes.

    Raises `grpc.RpcError` as the call does, `ValueError` for a stream that ends without `finish`.
    """
    started = time.perf_counter()
    first_s: float | None = None
    texts: list[str] = []
    token_ids: list[int] = []
    for chunk in chunks:
        if first_s is None and chunk.tokens:
            first_s = time.perf_counter() - started
        texts.append(chunk.text)
        token_ids.extend(token.id for token in chunk.tokens)
        on_chunk(chunk)
        if chunk.HasField("finish"):
            total_s = time.perf_counter() - started
            return Completion(
                text="".join(texts), token_ids=tuple(token_ids), finish=chunk.finish,
                request_id=chunk.request_id, first_s=total_s if first_s is None else first_s, total_s=total_s,
            )  # fmt: skip
    raise ValueError("the stream ended without its last chunk")


def stream(
    stub: outrider_pb2_grpc.OutriderStub,
    message: pb.GenerateRequest,
    timeout_s: float,
    on_chunk: Callable[[pb.GenerateChunk], None] = lambda chunk: None,
) -> Completion:
    """Send a request and read its stream; an interrupt cancels the call, which stops the work."""
    call = stub.GenerateStream(message, timeout=timeout_s)
    try:
        return collect(call, on_chunk)
    finally:
        call.cancel()  # no effect on a finished call


def is_emulated(stub: outrider_pb2_grpc.OutriderStub) -> bool:
    """Whether a tier of the service is an emulated device. Raises `grpc.RpcError` as the call does."""
    info: pb.GetModelInfoResponse = stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=INFO_TIMEOUT_S)
    return any(tier.model.startswith(EMULATED) for tier in info.tiers)

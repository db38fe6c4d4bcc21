"""Calls that no honest client would make, each made from a seed, and the statuses that may answer them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc

from cluster.rpc import outrider_pb2 as pb

SERVICE = "/outrider.v1.Outrider/"
SLOWEST_S = 20.0
METHODS = ("Generate", "GenerateStream", "GetModelInfo")
Code = grpc.StatusCode

# A message that can be read is served or refused in words. Cut short by our own `max_tokens` none runs into a deadline.
READ = frozenset({Code.OK, Code.INVALID_ARGUMENT})
UNREADABLE = frozenset({Code.INVALID_ARGUMENT})
EITHER = READ | UNREADABLE  # a mutated message may still be one
TOO_LARGE = frozenset({Code.RESOURCE_EXHAUSTED})
NO_METHOD = frozenset({Code.UNIMPLEMENTED})
NO_APPLICATION = frozenset({Code.NOT_FOUND})
NO_TOKEN = frozenset({Code.UNAUTHENTICATED})
NO_MESSAGE = UNREADABLE
ODD_METADATA = READ | NO_TOKEN | frozenset({Code.RESOURCE_EXHAUSTED})  # gRPC's limit is 8 KiB


@dataclass(frozen=True)
class Call:
    """One call."""

    kind: str
    method: str  # path
    payloads: tuple[bytes, ...]  # an honest call has one
    allowed: frozenset[grpc.StatusCode]
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    with_token: bool = True
    timeout_s: float = SLOWEST_S


def calls(seed: int, count: int, vocab_size: int, max_message_bytes: int) -> Iterator[Call]:
    """`count` calls; the same ones for the same seed."""
    rng = random.Random(seed)
    kinds: list[tuple[int, Callable[[], Call]]] = [
        (6, lambda: _random_fields(rng, vocab_size)), (6, lambda: _mutated(rng, vocab_size)), (3, lambda: _noise(rng)),
        (1, lambda: _lying_lengths(rng)), (1, lambda: _nested(rng)), (1, lambda: _many(rng, max_message_bytes)),
        (1, lambda: _wrong_method(rng)), (1, lambda: _metadata(rng)), (1, lambda: _without_token(rng)),
        (1, lambda: _wrong_count(rng)),
    ]  # fmt: skip
    weights = [weight for weight, _ in kinds]
    for _ in range(count):
        yield rng.choices(kinds, weights)[0][1]()


def _path(rng: random.Random) -> str:
    return SERVICE + rng.choice(METHODS)


_FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, 2.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"), 0.001, 5.0, 5.001)
_INTS = (0, 1, -1, 2, 7, 16, 64, 300, 2**31 - 1, -(2**31))


def _text(rng: random.Random, most: int = 60) -> str:
    alphabets = ("abc ", "\x00\x01\x7f", "é漢字🙂\u202e\ufeff", "<|endoftext|><|assistant|>{{%}}", "\n\r\t\\\"'")
    return "".join(rng.choice(rng.choice(alphabets)) for _ in range(rng.randrange(most)))


def request(rng: random.Random, vocab_size: int) -> pb.GenerateRequest:
    """A readable request with values in and out of bounds."""
    message = pb.GenerateRequest()
    kind = rng.randrange(4)
    if kind == 0:
        message.text = _text(rng)
    elif kind == 1:
        ids = [rng.choice((rng.randrange(vocab_size), rng.choice(_INTS))) for _ in range(rng.randrange(12))]
        message.token_ids.ids.extend(ids)
    elif kind == 2:
        for _ in range(rng.randrange(4)):
            role = rng.choice(("user", "assistant", "system", "tool", "", "root", _text(rng)))
            message.chat.messages.add(role=role, content=_text(rng))
    if rng.random() < 0.4:
        message.request_id = _text(rng, 200)
    sampling = message.sampling
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        if rng.random() < 0.25:
            setattr(sampling, name, rng.choice(_FLOATS))
    for name in ("top_k", "seed", "max_tokens", "min_tokens", "num_logprobs"):
        if rng.random() < 0.25:
            setattr(sampling, name, rng.choice(_INTS))
    if rng.random() < 0.2:
        for _ in range(rng.randrange(1, 5)):
            sampling.logit_bias[rng.choice(_INTS)] = rng.choice(_FLOATS)
    if rng.random() < 0.2:
        sampling.stop_strings.extend(_text(rng) for _ in range(rng.randrange(1, 20)))
    if rng.random() < 0.2:
        sampling.stop_token_ids.extend(rng.choice(_INTS) for _ in range(rng.randrange(1, 70)))
    sampling.ignore_eos = rng.random() < 0.5
    if rng.random() < 0.3:
        message.speculation.enabled = rng.random() < 0.5
    if rng.random() < 0.3:
        message.speculation.lookahead_tokens = rng.choice(_INTS)
    if rng.random() < 0.1:
        message.speculation.lossy = True
    return message


def _random_fields(rng: random.Random, vocab_size: int) -> Call:
    return Call("random fields", _path(rng), (request(rng, vocab_size).SerializeToString(),), READ)


def _mutated(rng: random.Random, vocab_size: int) -> Call:
    data = bytearray(request(rng, vocab_size).SerializeToString() or b"\x0a\x01x")
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randrange(1, 4)]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 6))
            case 3:
                data[at:at] = data[: rng.randrange(len(data) + 1)]
            case _:
                del data[at:]
        data = data or bytearray(b"\xff")
    return Call("mutated", _path(rng), (bytes(data),), EITHER)


def _noise(rng: random.Random) -> Call:
    return Call("noise", _path(rng), (rng.randbytes(rng.choice((0, 1, 2, 16, 200, 5000))),), EITHER)


def _lying_lengths(rng: random.Random) -> Call:
    """Fields that claim more bytes than there are, up to lengths that overflow."""
    four = b"\xff" * 4
    length = rng.choice((b"\x7f", four + b"\x07", four + b"\x0f", b"\xff" * 9 + b"\x01", b"\xff" * 11))
    field = rng.choice((b"\x0a", b"\x12", b"\x1a", b"\x22", b"\x2a", b"\x32"))
    path = SERVICE + rng.choice(METHODS[:2])
    return Call("lying lengths", path, (field + length + rng.randbytes(rng.randrange(40)),), UNREADABLE)


def _nested(rng: random.Random) -> Call:
    """Groups and messages inside each other, deeper than a stack."""
    depth = rng.choice((10, 99, 101, 1000, 20000))
    data = b"\x7b" * depth if rng.random() < 0.5 else b"\x7b" * depth + b"\x7c" * depth  # group 15, left open or closed
    return Call("nested", SERVICE + rng.choice(METHODS[:2]), (data,), UNREADABLE)


def _many(rng: random.Random, max_message_bytes: int) -> Call:
    """More of something than anybody needs; some of it more than a message may hold."""
    message = pb.GenerateRequest()
    size = rng.choice((max_message_bytes // 2, max_message_bytes + 100))
    match rng.randrange(6):
        case 0:
            message.text = "x" * size
        case 1:
            message.token_ids.ids.extend([1] * size)
        case 2:
            for _ in range(size // 2):
                message.chat.messages.add()
        case 3:
            message.text = "x"
            message.sampling.stop_strings.extend(["ab"] * (size // 4))
        case 4:
            message.text = "x"
            for key in range(size // 6):
                message.sampling.logit_bias[key] = 1.0
        case _:
            data = b"\xf8\x07\x01" * (size // 3)  # fields nobody knows
            allowed = UNREADABLE if len(data) <= max_message_bytes else TOO_LARGE
            return Call("many", SERVICE + rng.choice(METHODS[:2]), (data,), allowed)
    data = message.SerializeToString()
    allowed = UNREADABLE if len(data) <= max_message_bytes else TOO_LARGE
    return Call("many", SERVICE + rng.choice(METHODS[:2]), (data,), allowed)


def _wrong_method(rng: random.Random) -> Call:
    path = rng.choice((
        *(SERVICE + name for name in ("", "Nope", "__init__", "_chunks", "__call__", "generate")),
        "/other.Service/Generate", "/outrider.v2.Outrider/Generate", "/Generate", "/a/b/c/Generate", "/" + "x" * 2000,
        "/outrider.v1.Outrider/Generate/", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/ray.serve.RayServeAPIService/ListApplications",
    ))  # fmt: skip
    return Call("wrong method", path, (pb.GenerateRequest(text="x").SerializeToString(),), NO_METHOD)


def _metadata(rng: random.Random) -> Call:
    good = pb.GenerateRequest(text="x")
    good.sampling.max_tokens = 1
    if rng.random() < 0.3:
        other = (("application", rng.choice(("nope", "x" * 500, "../x"))),)
        return Call("metadata", _path(rng), (good.SerializeToString(),), NO_APPLICATION, other)
    odd = rng.choice((
        (("x-long", "v" * rng.choice((100, 5000, 9000))),), (("x-data-bin", rng.randbytes(200)),),
        tuple((f"k{i}", "v") for i in range(rng.choice((100, 300)))), (("request_id", "../../etc/passwd" * 10),),
        (("traceparent", "00-zz-zz-zz"),), (("multiplexed_model_id", "nope"),), (("session_id", "s" * 300),),
        (("grpc-accept-encoding", "nonsense"),), (("authorization", "Bearer other"),),
    ))  # fmt: skip
    return Call("metadata", _path(rng), (good.SerializeToString(),), ODD_METADATA, odd)


def _without_token(rng: random.Random) -> Call:
    value = rng.choice((None, "Bearer " + "x" * rng.randrange(600), "Basic eDp5"))
    token = () if value is None else (("authorization", value),)
    payload = pb.GenerateRequest(text="x").SerializeToString()
    return Call("without token", _path(rng), (payload,), NO_TOKEN, token, with_token=False)


def _wrong_count(rng: random.Random) -> Call:
    """No message, or several, where one belongs."""
    payloads = () if rng.random() < 0.5 else (pb.GenerateRequest(text="x").SerializeToString(),) * 3
    return Call("wrong count", _path(rng), payloads, READ if payloads else NO_MESSAGE)

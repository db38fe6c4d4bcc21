"""Failures in OpenAI's shape: the same sentences that gRPC clients read, under HTTP's status codes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc

from cluster.ingress.checks import PROMPT, InvalidRequest
from cluster.ingress.errors import status_of

Json = dict[str, object]
_CODES: Mapping[grpc.StatusCode, tuple[int, str, str | None]] = {  # HTTP status, type, code
    grpc.StatusCode.INVALID_ARGUMENT: (400, "invalid_request_error", None),
    grpc.StatusCode.UNAUTHENTICATED: (401, "invalid_request_error", "invalid_api_key"),
    grpc.StatusCode.PERMISSION_DENIED: (403, "invalid_request_error", "permission_denied"),
    grpc.StatusCode.NOT_FOUND: (404, "invalid_request_error", "not_found"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (429, "rate_limit_error", "rate_limit_exceeded"),
    grpc.StatusCode.CANCELLED: (499, "server_error", "cancelled"),
    grpc.StatusCode.UNAVAILABLE: (503, "server_error", "unavailable"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (504, "server_error", "deadline_exceeded"),
}
_INTERNAL = (500, "server_error", "internal_error")
# What gRPC's contract calls by other names.
_RENAMED = {"stop_strings": "stop", "num_logprobs": "top_logprobs", "lookahead_tokens": "speculation.lookahead_tokens"}


@dataclass(frozen=True, slots=True)
class Failure:
    """What an HTTP client sees of a failure."""

    status: int
    body: Json
    headers: Mapping[str, str] = field(default_factory=dict)


class NotFound(InvalidRequest):
    """There is no such model or path."""


def failure_of(error: BaseException, prompt_field: str = "messages") -> Failure:
    """The failure that `error` is; `prompt_field` is what the prompt is called in this request."""
    status = status_of(error)
    code, kind, word = _CODES.get(status.code, _INTERNAL)
    headers = {} if status.retry_after_s is None else {"retry-after": str(math.ceil(status.retry_after_s))}
    if status.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        headers["x-should-retry"] = "false"  # OpenAI's clients would let it take as long again
    if status.code is grpc.StatusCode.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    message, param = status.details, None
    if isinstance(error, InvalidRequest):
        code = 404 if isinstance(error, NotFound) else code
        word = error.code or word
        param = prompt_field if error.param == PROMPT else error.param
        if param in _RENAMED:
            message = message.replace(param, _RENAMED[param], 1)
            param = _RENAMED[param]
    return Failure(code, {"error": {"message": message, "type": kind, "param": param, "code": word}}, headers)

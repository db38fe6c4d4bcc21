"""The one mapping from exceptions to gRPC statuses; what a client reads never holds a traceback."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Protocol

import grpc
import ray.exceptions
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from actors.sampling.validate import BadLogits
from cluster.coordinator.errors import DeadlinePassed, FailureCode, GenerationFailed
from cluster.coordinator.tier import DraftLost, NoReplica, ReplicaLost
from cluster.ingress.allowance import Exceeded
from cluster.ingress.auth import Unauthenticated
from cluster.ingress.checks import InvalidRequest

_RETRY_S = 1.0
_MAX_CHARS = 500
_FAILURES = {
    FailureCode.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    FailureCode.EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    FailureCode.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    FailureCode.INTERNAL: grpc.StatusCode.INTERNAL,
}
_MORE_TIME = "allow more time or ask for fewer tokens"
_LOST = "the replica that served the request was lost: retry, the same seed gives the same text"


class QueueFull(Exception):
    """Too many requests wait already."""

    def __init__(self, num_waiting: int, retry_after_s: float = _RETRY_S) -> None:
        super().__init__(num_waiting, retry_after_s)  # all arguments, so that it survives pickling
        self.num_waiting = num_waiting
        self.retry_after_s = retry_after_s


class DeadlineExceeded(Exception):
    """The request's deadline passed after `num_tokens` tokens."""

    def __init__(self, num_tokens: int = 0) -> None:
        super().__init__(num_tokens)
        self.num_tokens = num_tokens


class StatusContext(Protocol):
    """What is needed of Serve's `grpc_context` (or a `grpc.ServicerContext`)."""

    def set_code(self, code: grpc.StatusCode, /) -> None: ...
    def set_details(self, details: str, /) -> None: ...
    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]], /) -> None: ...


@dataclass(frozen=True, slots=True)
class Status:
    """What a client sees of a failure."""

    code: grpc.StatusCode
    details: str  # one sentence on one line
    retry_after_s: float | None = None  # a hint for overload


def status_of(error: BaseException) -> Status:
    """The status of `error`, whatever Ray wrapped around it."""
    return _known(_unwrapped(error)) or Status(
        grpc.StatusCode.INTERNAL, "the server failed on this request; its log holds the details",
    )


def set_status(context: StatusContext, error: BaseException) -> Status:
    """Set code, details and retry hint of `error` on `context`; do it *before* raising.

    Serve answers INTERNAL with a traceback for exceptions raised without a code and details. The hint is part of
    the sentence, and is set as `grpc-retry-pushback-ms` too, which gRPC clients with a retry policy obey; the proxy of
    Serve 2.60 passes on code and details only.
    """
    status = status_of(error)
    context.set_code(status.code)
    context.set_details(status.details)
    if status.retry_after_s is not None:
        pushback_ms = str(math.ceil(status.retry_after_s * 1000))
        context.set_trailing_metadata([("grpc-retry-pushback-ms", pushback_ms)])
    return status


def _unwrapped(error: BaseException) -> BaseException:
    """The error behind Ray's wrapper; the wrapper's own message is a traceback."""
    while isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def _known(error: BaseException) -> Status | None:
    """The status of an error with a meaning of its own."""
    code = grpc.StatusCode
    match error:
        case InvalidRequest():
            return Status(code.INVALID_ARGUMENT, _sentence(error))
        case Unauthenticated():
            return Status(code.UNAUTHENTICATED, _sentence(error))
        case Exceeded():
            return Status(code.RESOURCE_EXHAUSTED, _sentence(error), error.retry_after_s)
        case GenerationFailed():
            retry_s = _RETRY_S if error.code is FailureCode.EXHAUSTED else None
            return Status(_FAILURES[error.code], _sentence(error), retry_s)
        case QueueFull():
            return _full(error.num_waiting, error.retry_after_s)
        case BackPressureError():
            return _full(None, _RETRY_S)
        case DeadlineExceeded():
            return Status(
                code.DEADLINE_EXCEEDED,
                f"the deadline passed after {error.num_tokens} tokens: {_MORE_TIME}",
            )
        case DeadlinePassed() | TimeoutError():  # before RayError: Ray's GetTimeoutError is a TimeoutError
            return Status(code.DEADLINE_EXCEEDED, f"the deadline passed: {_MORE_TIME}")
        case asyncio.CancelledError() | ray.exceptions.TaskCancelledError():
            return Status(code.CANCELLED, "the request was cancelled")
        case NoReplica():
            return Status(code.UNAVAILABLE, "no target replica is ready: retry in a moment", _RETRY_S)
        case ReplicaLost() | DraftLost() | ray.exceptions.RayActorError() | DeploymentUnavailableError():
            return Status(code.UNAVAILABLE, _LOST)
        case BadLogits():
            return Status(code.INTERNAL, "the target model gave logits that are not numbers (NaN or Inf)")
    return None


def _full(num_waiting: int | None, retry_after_s: float) -> Status:
    waiting = "too many" if num_waiting is None else str(num_waiting)
    return Status(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"the queue is full ({waiting} requests wait): retry in {retry_after_s:g} s", retry_after_s,
    )


def _sentence(error: BaseException) -> str:
    """The error's message on one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"

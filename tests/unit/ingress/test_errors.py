"""Every failure has one status and one clean sentence."""

import asyncio
import pickle

import grpc
import pytest
import ray.exceptions
from ray.serve.exceptions import BackPressureError

from actors.sampling.validate import BadLogits
from cluster.coordinator.errors import FailureCode, GenerationFailed
from cluster.coordinator.tier import NoReplica, ReplicaLost
from cluster.ingress.allowance import Exceeded
from cluster.ingress.auth import Unauthenticated
from cluster.ingress.checks import InvalidRequest
from cluster.ingress.errors import DeadlineExceeded, QueueFull, set_status, status_of

CASES = [
    (InvalidRequest("top_k is -1: use at least 0"), grpc.StatusCode.INVALID_ARGUMENT, "top_k is -1"),
    (Unauthenticated("no token came"), grpc.StatusCode.UNAUTHENTICATED, "no token came"),
    (Exceeded("slow down", 0.5), grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down"),
    (QueueFull(9, 2.5), grpc.StatusCode.RESOURCE_EXHAUSTED, "(9 requests wait): retry in 2.5 s"),
    (BackPressureError(3, 3), grpc.StatusCode.RESOURCE_EXHAUSTED, "retry in 1 s"),
    (GenerationFailed("busy", FailureCode.EXHAUSTED), grpc.StatusCode.RESOURCE_EXHAUSTED, "busy"),
    (GenerationFailed("lost", FailureCode.UNAVAILABLE), grpc.StatusCode.UNAVAILABLE, "lost"),
    (GenerationFailed("too long", FailureCode.INVALID), grpc.StatusCode.INVALID_ARGUMENT, "too long"),
    (GenerationFailed("NaN logits"), grpc.StatusCode.INTERNAL, "NaN logits"),
    (DeadlineExceeded(7), grpc.StatusCode.DEADLINE_EXCEEDED, "after 7 tokens: allow more time"),
    (TimeoutError(), grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed: allow more time"),
    (NoReplica("pool"), grpc.StatusCode.UNAVAILABLE, "no target replica is ready: retry in a moment"),
    (ReplicaLost("r1"), grpc.StatusCode.UNAVAILABLE, "the same seed gives the same text"),
    (ray.exceptions.ActorDiedError(), grpc.StatusCode.UNAVAILABLE, "was lost: retry"),
    (BadLogits("x"), grpc.StatusCode.INTERNAL, "NaN or Inf"),
    (asyncio.CancelledError(), grpc.StatusCode.CANCELLED, "was cancelled"),
    (KeyError("secret"), grpc.StatusCode.INTERNAL, "the server failed on this request"),
]


class Context:
    """Records what is set, as Serve's context does."""

    def __init__(self) -> None:
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.trailing: list[tuple[str, str]] = []

    def set_code(self, code: grpc.StatusCode, /) -> None:
        self.code = code

    def set_details(self, details: str, /) -> None:
        self.details = details

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]], /) -> None:
        self.trailing = trailing_metadata


@pytest.mark.parametrize(("error", "code", "part"), CASES, ids=[type(e).__name__ for e, _, _ in CASES])
def test_each_failure_sets_its_code_and_one_line(
    error: BaseException, code: grpc.StatusCode, part: str
) -> None:
    context = Context()
    set_status(context, error)
    assert context.code is code
    assert part in context.details
    assert "\n" not in context.details


def test_what_ray_wrapped_is_mapped_by_its_cause() -> None:
    wrapped = ray.exceptions.RayTaskError("f", 'Traceback\n File "x.py"', NoReplica("pool"))
    for error in (wrapped, wrapped.as_instanceof_cause()):
        assert status_of(error).code is grpc.StatusCode.UNAVAILABLE
        assert "Traceback" not in status_of(error).details


def test_unknown_failures_leak_nothing() -> None:
    wrapped = ray.exceptions.RayTaskError("f", "Traceback: token=abc", KeyError("token=abc"))
    for error in (KeyError("token=abc"), wrapped, wrapped.as_instanceof_cause()):
        status = status_of(error)
        assert status.code is grpc.StatusCode.INTERNAL
        assert "abc" not in status.details


def test_a_sentence_from_ray_is_the_causes_own() -> None:
    wrapped = ray.exceptions.RayTaskError("f", "Traceback\n...", InvalidRequest("top_k is -1: use 0"))
    assert status_of(wrapped.as_instanceof_cause()).details == "top_k is -1: use 0"


def test_overload_carries_a_retry_hint_that_grpc_clients_obey() -> None:
    context = Context()
    set_status(context, QueueFull(1, 0.25))
    assert context.trailing == [("grpc-retry-pushback-ms", "250")]


def test_long_messages_are_cut_to_one_short_line() -> None:
    details = status_of(InvalidRequest("a\nb " * 1000)).details
    assert len(details) == 500
    assert "\n" not in details


def test_errors_survive_pickling() -> None:
    full = pickle.loads(pickle.dumps(QueueFull(4, 2.0)))
    assert (full.num_waiting, full.retry_after_s) == (4, 2.0)
    assert pickle.loads(pickle.dumps(DeadlineExceeded(3))).num_tokens == 3

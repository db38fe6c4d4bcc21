"""What the HTTP edge needs of the ingress, and how callers are admitted."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from cluster.ingress.auth import authorization_of
from cluster.ingress.calls import CallLog
from cluster.ingress.http.failures import Failure, Json, NotFound, failure_of
from cluster.ingress.tokenizing import TextCodec
from cluster.rpc import outrider_pb2 as pb

logger = logging.getLogger(__name__)

Chunks = AsyncGenerator[pb.GenerateChunk, None]
Headers = Sequence[tuple[str, str]]  # names in lower case
Answer = Callable[[Request, str | None], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Backend:
    """The ingress as HTTP sees it."""

    model: str  # the one that is served
    version: str
    max_context_tokens: int
    codec: TextCodec
    admitted: Callable[[str | bytes | None], AbstractContextManager[str | None]]  # as `Guard.admitted`
    chunks: Callable[[pb.GenerateRequest, str | None, Headers], Chunks]  # of an admitted caller
    load: Callable[[], Json]
    watched: Callable[[pb.GenerateRequest, str | None, Headers, CallLog], Chunks]  # the log gets the times of its calls
    status: Callable[[], Awaitable[Json]]  # of tiers and pools


class Endpoint:
    """An ASGI endpoint whose caller is admitted before anything is read, until everything is sent."""

    def __init__(self, backend: Backend, answer: Answer, prompt_field: str = "messages") -> None:
        self._backend = backend
        self._answer = answer
        self._prompt_field = prompt_field

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A cancellation, as when the client leaves, passes through."""
        request = Request(scope, receive)
        with ExitStack() as stack:
            try:
                caller = stack.enter_context(self._backend.admitted(authorization(request)))
                response = await self._answer(request, caller)
            except Exception as error:  # every failure becomes an answer
                failure = explained(error, self._prompt_field)
                response = JSONResponse(failure.body, failure.status, headers=dict(failure.headers))
            await response(scope, receive, send)


def authorization(request: Request) -> str | bytes | None:
    """What the caller says of itself."""
    return authorization_of(request.headers.items())


def explained(error: Exception, prompt_field: str) -> Failure:
    """The failure that the client sees; what it must not see goes to the log."""
    failure = failure_of(error, prompt_field)
    if failure.status == 500:
        logger.error("request failed", exc_info=error)
    return failure


def check_model(asked: str, served: str) -> None:
    """Raises `NotFound` for another model than the one that is served."""
    if asked != served:
        raise NotFound(f"the model {asked[:128]!r} is not served here: ask for {served!r}", "model", "model_not_found")

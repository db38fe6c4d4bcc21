"""The ASGI application: OpenAI's paths over the same generations that gRPC serves."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.ingress.http.answers import ChatChoice, Head, Reading, TextChoice, usage
from cluster.ingress.http.asks import Asks, chat_asks, chat_tools, completion_asks, forced_calls
from cluster.ingress.http.backend import Backend, Chunks, Endpoint, authorization, check_model, explained
from cluster.ingress.http.body import read_body
from cluster.ingress.http.failures import Json
from cluster.ingress.http.fields import ChatBody, Common, CompletionBody
from cluster.ingress.http.forced import blaming_tools
from cluster.ingress.http.live import Live
from cluster.ingress.http.page import page_routes
from cluster.ingress.http.streams import Events, side_by_side
from cluster.ingress.outflow import Outflow
from cluster.ingress.replies import merged
from cluster.rpc import outrider_pb2 as pb


def http_app(backend: Backend, more: Sequence[Route] = ()) -> Starlette:
    """The application; `more` are routes beside OpenAI's."""
    began = int(time.time())
    model: Json = {"id": backend.model, "object": "model", "created": began, "owned_by": "outrider",
                   "max_model_len": backend.max_context_tokens}

    async def models(request: Request, caller: str | None) -> Response:
        return JSONResponse({"object": "list", "data": [model]})

    async def one_model(request: Request, caller: str | None) -> Response:
        check_model(request.path_params["model"], backend.model)
        return JSONResponse(model)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": backend.model, **backend.load()})

    generations, live = Generations(backend), Live(backend)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", Endpoint(backend, generations.chat), methods=["POST"]),
            Route("/v1/completions", Endpoint(backend, generations.completion, "prompt"), methods=["POST"]),
            Route("/v1/models", Endpoint(backend, models), methods=["GET"]),
            Route("/v1/models/{model:path}", Endpoint(backend, one_model), methods=["GET"]),
            Route("/health", health, methods=["GET"]),
            Route("/v1/outrider/generate", Endpoint(backend, live.generate), methods=["POST"]),
            Route("/v1/outrider/status", Endpoint(backend, live.status), methods=["GET"]),
            *more,
            *page_routes(),
        ],
        exception_handlers={HTTPException: _http_error},  # type: ignore[dict-item]  # narrower than its type
    )


class Generations:
    """`/v1/chat/completions` and `/v1/completions`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def chat(self, request: Request, caller: str | None) -> Response:
        """A chat."""
        body = await read_body(request, ChatBody)
        check_model(body.model, self._backend.model)
        codec = self._backend.codec
        head = self._head("chatcmpl")
        asks = chat_asks(body, codec, head.id)
        reading = Reading(
            codec.spelling, codec.tool_format, tuple(tool["function"]["name"] for tool in chat_tools(body, codec)),
            only_one_call=body.parallel_tool_calls is False, logprobs=bool(body.logprobs),
            forced=forced_calls(body, codec),
        )
        choices = [ChatChoice(index, reading) for index in range(len(asks.requests))]
        streams = self._streams(asks, request, caller)
        if reading.forced is not None:
            streams = [blaming_tools(stream) for stream in streams]
        return await self._answer(body, asks, choices, head, "chat.completion", streams)

    async def completion(self, request: Request, caller: str | None) -> Response:
        """Completions of one or several prompts."""
        body = await read_body(request, CompletionBody)
        check_model(body.model, self._backend.model)
        head = self._head("cmpl")
        asks = completion_asks(body, head.id)
        spelling, wanted = self._backend.codec.spelling, body.logprobs is not None
        choices = [TextChoice(index, spelling, wanted) for index in range(len(asks.requests))]
        return await self._answer(body, asks, choices, head, "text_completion", self._streams(asks, request, caller))

    def _head(self, kind: str) -> Head:
        backend = self._backend
        return Head(f"{kind}-{secrets.token_hex(12)}", int(time.time()), backend.model, f"outrider-{backend.version}")

    def _streams(self, asks: Asks, request: Request, caller: str | None) -> list[Chunks]:
        """Of all choices: the first has the place of the request itself, each other one takes its own."""
        first, *others = asks.requests
        headers = request.headers.items()
        return [self._backend.chunks(first, caller, headers), *(self._further(each, request) for each in others)]

    async def _further(self, asked: pb.GenerateRequest, request: Request) -> Chunks:
        with self._backend.admitted(authorization(request)) as caller:
            async with aclosing(self._backend.chunks(asked, caller, request.headers.items())) as chunks:
                async for chunk in chunks:
                    yield chunk

    @staticmethod
    async def _answer(
        body: Common, asks: Asks, choices: Sequence[ChatChoice | TextChoice], head: Head, kind: str,
        streams: Sequence[Chunks],
    ) -> Response:
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            pieces = "chat.completion.chunk" if kind == "chat.completion" else kind
            flowing = [Outflow(stream, merged).items() for stream in streams]
            events = _events(flowing, choices, head, pieces, asks.num_per_prompt if with_usage else None)
            field = "messages" if kind == "chat.completion" else "prompt"
            return Events(events, lambda error: explained(error, field))
        finishes: list[pb.Finish] = [pb.Finish()] * len(choices)
        async with aclosing(side_by_side(streams)) as chunks:
            async for index, chunk in chunks:
                choices[index].delta(chunk)
                if chunk.HasField("finish"):
                    finishes[index] = chunk.finish
        return JSONResponse(head.wrap(
            kind, [choice.message() for choice in choices], usage=usage(finishes, asks.num_per_prompt),
        ))


async def _events(
    streams: Sequence[Chunks], choices: Sequence[ChatChoice | TextChoice], head: Head, kind: str,
    usage_per: int | None,
) -> AsyncGenerator[Json, None]:
    """Events of all choices; with `usage_per`, choices of a prompt, the counts come last."""
    finishes: list[pb.Finish] = [pb.Finish()] * len(choices)
    more: Json = {} if usage_per is None else {"usage": None}
    async with aclosing(side_by_side(streams)) as chunks:
        async for index, chunk in chunks:
            for choice in choices[index].delta(chunk):
                yield head.wrap(kind, [choice], **more)
            if chunk.HasField("finish"):
                finishes[index] = chunk.finish
    if usage_per is not None:
        yield head.wrap(kind, [], usage=usage(finishes, usage_per))


async def _http_error(request: Request, error: HTTPException) -> Response:
    paths = "use /v1/chat/completions, /v1/completions or /v1/models"
    message = {404: f"{request.url.path[:128]} is no path of this server: {paths}",
               405: f"{request.method} is not for {request.url.path[:128]}: use another method"}
    return JSONResponse(
        {"error": {"message": message.get(error.status_code, error.detail), "type": "invalid_request_error",
                   "param": None, "code": "not_found" if error.status_code == 404 else None}},
        error.status_code, headers=dict(error.headers or {}),
    )

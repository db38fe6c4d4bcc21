"""What the live page asks for: a generation token by token with the times of its rounds, and the state of the pools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from secrets import token_hex

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cluster.ingress.calls import CallLog, TimedCall
from cluster.ingress.http.answers import speculation_figures
from cluster.ingress.http.asks import chat_asks
from cluster.ingress.http.backend import Backend, check_model, explained
from cluster.ingress.http.body import read_body
from cluster.ingress.http.failures import Json
from cluster.ingress.http.fields import ChatBody
from cluster.ingress.http.streams import Events
from cluster.ingress.outflow import Outflow
from cluster.ingress.replies import merged
from cluster.rpc import outrider_pb2 as pb


class Live:
    """`/v1/outrider/generate` and `/v1/outrider/status`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def generate(self, request: Request, caller: str | None) -> Response:
        """A chat, taken as `/v1/chat/completions` takes it; events tell tokens, origins and times."""
        body = await read_body(request, ChatBody)
        check_model(body.model, self._backend.model)
        (asked, *_) = chat_asks(body, self._backend.codec, f"live-{token_hex(12)}").requests
        log = CallLog()
        chunks = Outflow(self._backend.watched(asked, caller, request.headers.items(), log), merged).items()
        return Events(self._events(chunks, log), lambda error: explained(error, "messages"))

    async def status(self, request: Request, caller: str | None) -> Response:
        """Tiers, pools, and how busy this is."""
        return JSONResponse(await self._backend.status())

    async def _events(
        self, chunks: AsyncGenerator[pb.GenerateChunk, None], log: CallLog
    ) -> AsyncGenerator[Json, None]:
        async with aclosing(chunks) as stream:
            async for chunk in stream:
                event: Json = {"at_s": log.now_s(), "text": chunk.text, "tokens": self._tokens(chunk.tokens),
                               "calls": [_call(call) for call in log.take()]}
                if chunk.HasField("finish"):
                    usage = chunk.finish.usage
                    event["finish"] = {
                        "reason": pb.FinishReason.Name(chunk.finish.reason).removeprefix("FINISH_REASON_").lower(),
                        "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
                        "cached_tokens": usage.cached_tokens, "speculation": speculation_figures(chunk.finish),
                    }
                yield event

    def _tokens(self, tokens: Sequence[pb.Token]) -> list[Json]:
        """A token need not be a whole character, so its bytes are told; a special one has none."""
        codec = self._backend.codec
        return [
            {"bytes": [] if codec.is_special(token.id) else list(codec.spelling.bytes_of(token.id)),
             "origin": pb.Origin.Name(token.origin).removeprefix("ORIGIN_").lower(), "tier": token.tier}
            for token in tokens
        ]


def _call(call: TimedCall) -> Json:
    return {"pool": call.tier, "kind": call.kind, "began_s": round(call.began_s, 6), "ended_s": round(call.ended_s, 6)}

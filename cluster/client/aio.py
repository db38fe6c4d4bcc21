"""The asynchronous client: the same as the other one, on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from cluster.client.attempts import BROKEN, Attempts, CallFailed, Retry
from cluster.client.requests import Options, Prompt, request_of
from cluster.client.results import Chunk, Finish, Generation, Token, chunk_of, generation_of
from cluster.client.sync import CHANNEL_OPTIONS, TIMEOUT_S, Metadata
from cluster.edge.access import Access, reached
from cluster.rpc import outrider_pb2 as pb
from cluster.rpc import outrider_pb2_grpc


class AsyncStream:
    """Chunks of one generation as they come. Leaving the `async with` block stops the work on the server, as does the
    cancellation of the task that reads."""

    def __init__(
        self, stub: Any, message: pb.GenerateRequest, timeout_s: float, retry: Retry, metadata: Metadata
    ) -> None:
        self._stub = stub
        self._message = message
        self._attempts = Attempts(message, timeout_s, retry)
        self._metadata = metadata
        self._chunks = self._run()
        self._texts: list[str] = []
        self._tokens: list[Token] = []
        self._finish: Finish | None = None

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        """The next chunk. Raises `CallFailed`."""
        chunk = chunk_of(await anext(self._chunks))
        self._texts.append(chunk.text)
        self._tokens += chunk.tokens
        self._finish = chunk.finish
        return chunk

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop it. No effect on a stream that has ended."""
        await self._chunks.aclose()

    @property
    def text(self) -> str:
        """What came so far."""
        return "".join(self._texts)

    async def result(self) -> Generation:
        """The whole generation; reads what is left. Raises `CallFailed`, also for a stream that was closed."""
        async for _ in self:
            pass
        if self._finish is None:
            raise CallFailed(grpc.StatusCode.CANCELLED, "the stream was closed")
        return Generation(self.text, tuple(self._tokens), self._finish, self._message.request_id)

    async def _run(self) -> AsyncGenerator[pb.GenerateChunk, None]:
        while True:
            call = self._stub.GenerateStream(
                self._message, timeout=self._attempts.timeout_s, metadata=self._metadata,
            )
            try:
                async for chunk in call:
                    new = self._attempts.fresh(chunk)
                    if new is not None:
                        yield new
                    if chunk.HasField("finish"):
                        return
                wait_s = self._attempts.after(grpc.StatusCode.UNAVAILABLE, BROKEN)
            except grpc.aio.AioRpcError as error:
                wait_s = _wait_s(self._attempts, error)
            finally:
                call.cancel()
            await asyncio.sleep(wait_s)


class AsyncClient:
    """A service, by its address or by `Access` (TLS, a client's certificate, a token)."""

    def __init__(
        self, service: str | Access, *, timeout_s: float = TIMEOUT_S, retry: Retry | None = None,
        metadata: Metadata = (),
    ) -> None:
        """As `Client`; make it where its event loop runs."""
        self._channel = reached(service).aio_channel(CHANNEL_OPTIONS)
        self.stub = outrider_pb2_grpc.OutriderStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._timeout_s = timeout_s
        self._retry = retry or Retry()
        self._metadata = metadata

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the connection, and what runs over it."""
        await self._channel.close(None)

    def stream(
        self, prompt: Prompt | pb.GenerateRequest, options: Options | None = None, *, timeout_s: float | None = None
    ) -> AsyncStream:
        """Begin a generation."""
        message = prompt if isinstance(prompt, pb.GenerateRequest) else request_of(prompt, options)
        return AsyncStream(self.stub, message, timeout_s or self._timeout_s, self._retry, self._metadata)

    async def generate(
        self, prompt: Prompt | pb.GenerateRequest, options: Options | None = None, *, timeout_s: float | None = None
    ) -> Generation:
        """A whole generation. Raises `CallFailed`."""
        message = prompt if isinstance(prompt, pb.GenerateRequest) else request_of(prompt, options)
        return generation_of(await self._unary(self.stub.Generate, message, timeout_s or self._timeout_s))

    async def model_info(self, *, timeout_s: float = 30.0) -> pb.GetModelInfoResponse:
        """What is served. Raises `CallFailed`."""
        found: pb.GetModelInfoResponse = await self._unary(self.stub.GetModelInfo, pb.GetModelInfoRequest(), timeout_s)
        return found

    async def _unary(self, method: Any, message: Any, timeout_s: float) -> Any:
        attempts = Attempts(pb.GenerateRequest(), timeout_s, self._retry)
        while True:
            try:
                return await method(message, timeout=attempts.timeout_s, metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                await asyncio.sleep(_wait_s(attempts, error))


def _wait_s(attempts: Attempts, error: grpc.aio.AioRpcError) -> float:
    trailing: Any = error.trailing_metadata() or ()
    return attempts.after(error.code(), error.details() or "", tuple(trailing))

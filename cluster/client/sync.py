"""The synchronous client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from cluster.client.attempts import BROKEN, Attempts, CallFailed, Retry
from cluster.client.requests import Options, Prompt, request_of
from cluster.client.results import Chunk, Finish, Generation, Token, chunk_of, generation_of
from cluster.edge.access import Access, reached
from cluster.rpc import outrider_pb2 as pb
from cluster.rpc import outrider_pb2_grpc

MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # long prompts as token ids, many log-probabilities
CHANNEL_OPTIONS = [(f"grpc.max_{way}_message_length", MAX_MESSAGE_BYTES) for way in ("send", "receive")]
TIMEOUT_S = 600.0
Metadata = Sequence[tuple[str, str]]


class Stream:
    """Chunks of one generation as they come. Leaving the `with` block, or `cancel`, stops the work on the server."""

    def __init__(
        self, stub: Any, message: pb.GenerateRequest, timeout_s: float, retry: Retry, metadata: Metadata = (),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stub = stub
        self._message = message
        self._attempts = Attempts(message, timeout_s, retry)
        self._metadata = metadata
        self._sleep = sleep
        self._call: Any = None
        self._cancelled = False
        self._chunks = self._run()
        self._texts: list[str] = []
        self._tokens: list[Token] = []
        self._finish: Finish | None = None

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        """The next chunk. Raises `CallFailed`; after `cancel` the stream is simply over."""
        chunk = chunk_of(next(self._chunks))
        self._texts.append(chunk.text)
        self._tokens += chunk.tokens
        self._finish = chunk.finish
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Stop it; may be called from another thread. No effect on a stream that has ended."""
        self._cancelled = True
        if self._call is not None:
            self._call.cancel()

    @property
    def text(self) -> str:
        """What came so far."""
        return "".join(self._texts)

    def result(self) -> Generation:
        """The whole generation; reads what is left. Raises `CallFailed`, also for a stream that was cancelled."""
        for _ in self:
            pass
        if self._finish is None:
            raise CallFailed(grpc.StatusCode.CANCELLED, "the stream was cancelled")
        return Generation(self.text, tuple(self._tokens), self._finish, self._message.request_id)

    def messages(self) -> Iterator[pb.GenerateChunk]:
        """The same chunks as they are on the wire, instead of iterating over the stream."""
        return self._chunks

    def _run(self) -> Iterator[pb.GenerateChunk]:
        while not self._cancelled:
            self._call = call = self._stub.GenerateStream(
                self._message, timeout=self._attempts.timeout_s, metadata=self._metadata,
            )
            try:
                for chunk in call:
                    new = self._attempts.fresh(chunk)
                    if new is not None:
                        yield new
                    if chunk.HasField("finish"):
                        return
                wait_s = self._attempts.after(grpc.StatusCode.UNAVAILABLE, BROKEN)
            except grpc.RpcError as error:
                if self._cancelled:
                    return
                wait_s = self._attempts.after(*_status(error))
            finally:
                call.cancel()
            self._sleep(wait_s)


class Client:
    """A service, by its address or by `Access` (TLS, a client's certificate, a token)."""

    def __init__(
        self, service: str | Access, *, timeout_s: float = TIMEOUT_S, retry: Retry | None = None,
        metadata: Metadata = (),
    ) -> None:
        """`timeout_s` of each request, all its attempts together; `metadata` is sent with every call."""
        self._channel = reached(service).channel(CHANNEL_OPTIONS)
        self.stub = outrider_pb2_grpc.OutriderStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._timeout_s = timeout_s
        self._retry = retry or Retry()
        self._metadata = metadata

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, and what runs over it."""
        self._channel.close()

    def stream(
        self, prompt: Prompt | pb.GenerateRequest, options: Options | None = None, *, timeout_s: float | None = None
    ) -> Stream:
        """Begin a generation."""
        message = prompt if isinstance(prompt, pb.GenerateRequest) else request_of(prompt, options)
        return Stream(self.stub, message, timeout_s or self._timeout_s, self._retry, self._metadata)

    def generate(
        self, prompt: Prompt | pb.GenerateRequest, options: Options | None = None, *, timeout_s: float | None = None
    ) -> Generation:
        """A whole generation. Raises `CallFailed`."""
        message = prompt if isinstance(prompt, pb.GenerateRequest) else request_of(prompt, options)
        return generation_of(self._unary(self.stub.Generate, message, timeout_s or self._timeout_s))

    def model_info(self, *, timeout_s: float = 30.0) -> pb.GetModelInfoResponse:
        """What is served. Raises `CallFailed`."""
        found: pb.GetModelInfoResponse = self._unary(self.stub.GetModelInfo, pb.GetModelInfoRequest(), timeout_s)
        return found

    def _unary(self, method: Any, message: Any, timeout_s: float) -> Any:
        attempts = Attempts(pb.GenerateRequest(), timeout_s, self._retry)
        while True:
            try:
                return method(message, timeout=attempts.timeout_s, metadata=self._metadata)
            except grpc.RpcError as error:
                time.sleep(attempts.after(*_status(error)))


def _status(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, Sequence[tuple[str, str | bytes]]]:
    """Of a call that failed."""
    call: Any = error
    return call.code(), call.details() or "", call.trailing_metadata() or ()

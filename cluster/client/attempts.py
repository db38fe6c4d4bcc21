"""When a call is tried again, and how a stream that broke goes on where it was. Pure: no call is made here.

A stream is resumed by sending the same request and leaving out what was handed on already. That is exact, because a
greedy or seeded request has one text, whatever replica makes it; what comes again is compared with what came before.
Other requests are tried again only as long as nothing was handed on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import grpc

from cluster.client.requests import is_repeatable
from cluster.rpc import outrider_pb2 as pb

_BUSY = grpc.StatusCode.RESOURCE_EXHAUSTED
# Nobody here has cancelled: an HAProxy whose backend dies in mid-stream resets the stream with that code.
_RETRIED = (grpc.StatusCode.UNAVAILABLE, _BUSY, grpc.StatusCode.CANCELLED)
_RESET = "RST_STREAM"  # a connection's end may come under other codes too
_PUSHBACK = "grpc-retry-pushback-ms"
BROKEN = "the stream ended without its last chunk"


class CallFailed(Exception):
    """A call that ended with a status; `str(error)` is one sentence."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details

    def __str__(self) -> str:
        return f"{self.code.name.lower().replace('_', ' ')}: {self.details}"


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and after how long. Seconds."""

    attempts: int = 4  # calls of which nothing came yet, in all; 1: never again
    resumptions: int = 8  # failures after something came, one behind the other; a lost replica takes a while
    first_s: float = 0.2
    longest_s: float = 5.0


class Attempts:
    """The attempts of one request: what was handed on so far, and whether there is another one."""

    def __init__(
        self, message: pb.GenerateRequest, timeout_s: float, retry: Retry,
        clock: Callable[[], float] = time.monotonic, draw: Callable[[], float] = random.random,
    ) -> None:
        self._repeatable = is_repeatable(message)
        self._retry = retry
        self._clock = clock
        self._draw = draw
        self._end_s = clock() + timeout_s
        self._num_failed = 0
        self._text = ""  # handed on
        self._ids: list[int] = []
        self._again_text: list[str] = []  # of this attempt, until it has come to where the last one was
        self._num_again = 0
        self._behind = False

    @property
    def timeout_s(self) -> float:
        """What is left for the next attempt."""
        return max(0.001, self._end_s - self._clock())

    def fresh(self, chunk: pb.GenerateChunk) -> pb.GenerateChunk | None:
        """What `chunk` brings that was not handed on yet; None: nothing. Raises `CallFailed` if it is another text."""
        tokens: Iterable[pb.Token] = chunk.tokens
        if self._behind:
            chunk, tokens = self._trimmed(chunk)
        if chunk.text or len(chunk.tokens):
            self._num_failed = 0
        self._text += chunk.text
        self._ids.extend(token.id for token in tokens)
        return chunk if chunk.text or len(chunk.tokens) or chunk.HasField("finish") else None

    def after(self, code: grpc.StatusCode, details: str, trailing: Iterable[tuple[str, str | bytes]] = ()) -> float:
        """Seconds until the next attempt. Raises `CallFailed` when there is none."""
        self._num_failed += 1
        words = " ".join((details or "no details").split())
        began = bool(self._text or self._ids)
        again = code in _RETRIED or _RESET in words
        most = self._retry.resumptions if began else self._retry.attempts - 1
        if not again or self._num_failed > most:
            raise CallFailed(code, words)
        if began and not self._repeatable:
            raise CallFailed(code, f"{words} (a stream can be resumed only with temperature 0 or a seed)")
        wait_s = min(self._retry.longest_s, self._retry.first_s * 2.0 ** (self._num_failed - 1))
        wait_s *= 0.5 + 0.5 * self._draw()  # or all clients of a server that was lost would come back at once
        wait_s = max(wait_s, _hint_s(trailing))
        if wait_s >= self._end_s - self._clock():
            raise CallFailed(code, words)
        self._behind, self._again_text, self._num_again = True, [], 0
        return float(wait_s)

    def _trimmed(self, chunk: pb.GenerateChunk) -> tuple[pb.GenerateChunk, list[pb.Token]]:
        ids = [token.id for token in chunk.tokens]
        known = self._ids[self._num_again : self._num_again + len(ids)]
        self._num_again += len(ids)
        self._again_text.append(chunk.text)
        text = "".join(self._again_text)
        ended = chunk.HasField("finish")
        caught_up = self._num_again >= len(self._ids) and len(text) >= len(self._text)
        same = ids[: len(known)] == known and (text.startswith(self._text) or self._text.startswith(text))
        if not same or (ended and not caught_up):
            raise CallFailed(grpc.StatusCode.ABORTED, "the text came out differently when it was asked for again: the "
                             "service has another model or other settings now")
        left = pb.GenerateChunk()
        left.CopyFrom(chunk)
        tokens = list(chunk.tokens)[len(known) :]
        del left.tokens[: len(known)]
        left.text = text[len(self._text) :]
        # Text that is new is handed on, and so becomes part of what the next chunk is compared with.
        self._behind = not caught_up
        return left, tokens


def _hint_s(trailing: Iterable[tuple[str, str | bytes]]) -> float:
    """How long the server asks to wait."""
    for key, value in trailing:
        if key == _PUSHBACK and isinstance(value, str) and value.isdigit():
            return int(value) / 1000
    return 0.0

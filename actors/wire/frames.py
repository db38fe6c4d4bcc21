"""Frames on a connection: a length, a kind, the number of a call, and a payload that only its ends understand."""

from __future__ import annotations

import abc
import asyncio
import os
import struct
import threading
from collections.abc import Iterator
from enum import IntEnum
from typing import cast

MAX_PAYLOAD_BYTES = 2**30  # the features of a long prompt, by far the largest that travels, stay below
_HEADER = struct.Struct("<IBQ")
TRACED = 0x80  # added to the kind of a call whose request is traced: its payload begins with the context of its trace
CONTEXT_BYTES = 24  # (`actors.spans`)


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 0  # each way when a connection opens (`actors.wire.access`)
    PROPOSE = 1
    VERIFY = 2
    CLOSE = 3  # of a sequence
    RESULT = 4  # of the call with the same number
    FAILED = 5  # likewise; the payload is one line
    FULL = 9  # likewise: no room for the call here and now
    AHEAD = 6  # draft for the outcomes of a pass under way
    VERIFY_AHEAD = 7  # verify whichever branch of an enumeration fits
    STEP = 8  # draft with the inline tiers of the verifier's process, and verify at once
    PING = 10  # is anybody there? asked while a call takes long
    PONG = 11
    DRAFT = 12  # what the call with the same number, a `VERIFY` without its last draft, waits for
    WITHDRAW = 13  # instead of that: the call is not wanted any more


class BadFrame(Exception):
    """The other end does not speak this protocol."""


def packed(kind: int, call: int, payload: bytes) -> bytes:
    """A frame as it travels."""
    return _HEADER.pack(len(payload), kind, call) + payload


class FrameParser:
    """Cuts a stream of bytes into frames."""

    def __init__(self, max_payload_bytes: int) -> None:
        self.max_payload_bytes = max_payload_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """The frames (kind, call, payload) that are complete with `data`. Raises `BadFrame`."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= _HEADER.size:
                length, kind, call = _HEADER.unpack_from(buffer, start)
                if length > self.max_payload_bytes:
                    raise BadFrame(f"a frame of {length} bytes: at most {self.max_payload_bytes} are taken")
                end = start + _HEADER.size + length
                if len(buffer) < end:
                    return
                payload = bytes(buffer[start + _HEADER.size : end])
                start = end
                yield kind, call, payload
        finally:
            del buffer[:start]


class FrameProtocol(asyncio.Protocol, abc.ABC):
    """One end of a connection. Frames sent in one tick of the event loop travel as one write, at its end unless one
    is sent at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = FrameParser(MAX_PAYLOAD_BYTES)
        self._outbox: list[bytes] = []
        self._writing = threading.Lock()  # held by whichever thread writes
        self._straight: int | None = None  # a descriptor for other threads, which no other connection can come to have
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def let_threads_write(self) -> None:
        """From now on `send_straight` writes, if the connection is not encrypted."""
        assert self.transport is not None
        if self.transport.get_extra_info("sslcontext") is None:
            self._straight = os.dup(self.transport.get_extra_info("socket").fileno())

    def connection_lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        with self._writing:
            straight, self._straight = self._straight, None
            if straight is not None:
                os.close(straight)

    def data_received(self, data: bytes) -> None:
        """Hand the complete frames to `on_frame`; a stream that is none of ours ends the connection."""
        try:
            for kind, call, payload in self._parser.feed(data):
                self.on_frame(kind, call, payload)
        except BadFrame as error:
            self.on_bad_frame(error)
            if self.transport is not None:
                self.transport.abort()

    def send(self, kind: int, call: int, payload: bytes = b"", *, at_once: bool = False) -> None:
        """Queue a frame for the end of this tick. No effect once the connection is closed.

        `at_once`: nothing that should travel with it will follow, so it leaves now, and what is queued with it.
        """
        if not self._outbox and not at_once:
            self._loop.call_soon(self._flush)
        self._outbox.append(packed(kind, call, payload))
        if at_once:
            self._flush()

    def _flush(self) -> None:
        with self._writing:
            frames, self._outbox = self._outbox, []
            if frames and self.transport is not None and not self.transport.is_closing():
                self.transport.write(b"".join(frames))

    def send_straight(self, frames: bytes) -> bool:
        """Write whole frames now, from a thread that is not the event loop's, which need not be woken up for it.

        False, and nothing is written, where that is not possible: what the loop has written before is still on its
        way, or the connection has ended or is encrypted.
        """
        with self._writing:
            transport = self.transport
            if self._straight is None or transport is None or transport.is_closing():
                return False
            if self._outbox or transport.get_write_buffer_size():
                return False
            try:
                num_written = os.write(self._straight, frames)
            except OSError:  # full, or its end has not been heard of yet
                return False
            if num_written < len(frames):
                self._outbox.insert(0, frames[num_written:])
                self._loop.call_soon_threadsafe(self._flush)
            return True

    @abc.abstractmethod
    def on_frame(self, kind: int, call: int, payload: bytes) -> None:
        """Take a frame. May raise `BadFrame`."""

    @abc.abstractmethod
    def on_bad_frame(self, error: BadFrame) -> None:
        """The connection is about to be aborted for this reason."""

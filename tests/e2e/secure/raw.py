"""Bytes that are no call at all, sent to the port itself: other protocols, broken frames, lengths that lie."""

from __future__ import annotations

import random
import socket
import ssl
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    """An HTTP/2 frame; `length` may lie."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def header(name: bytes, value: bytes) -> bytes:
    """A literal field of HPACK, never indexed; shorter than 127 bytes each."""
    return b"\x10" + bytes((len(name),)) + name + bytes((len(value),)) + value


def call_head(token: str, path: bytes, *, kind: bytes = b"application/grpc", extra: bytes = b"") -> bytes:
    """The headers of a call."""
    return b"".join((
        header(b":method", b"POST"), header(b":scheme", b"https"), header(b":path", path),
        header(b":authority", b"localhost"), header(b"te", b"trailers"), header(b"content-type", kind),
        header(b"authorization", b"Bearer " + token.encode()), extra,
    ))


NOW, LATER, NEVER = "now", "later", "never"  # when an answer is due: to what was sent, after a timeout, not at all


def attempts(seed: int, count: int, token: str) -> list[tuple[bytes, str]]:
    """What to send after connecting; and when the other end must answer or hang up."""
    rng = random.Random(seed)
    path = b"/outrider.v1.Outrider/Generate"
    opened = PREFACE + frame(SETTINGS, 0, 0, b"")
    found: list[tuple[bytes, str]] = []
    for _ in range(count):
        head = frame(HEADERS, END_HEADERS, 1, call_head(token, path))
        message = b"\x0a\x01x"
        match rng.randrange(10):
            case 0:
                found.append((rng.randbytes(rng.choice((24, 200, 5000))), NEVER))
            case 1:
                found.append((b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", NOW))
            case 2:  # a message that claims more bytes than come, then the end of the stream
                lie = struct.pack(">BI", 0, rng.choice((4, 1000, 2**31, 2**32 - 1))) + message
                found.append((opened + head + frame(DATA, END_STREAM, 1, lie), NEVER))  # gRPC waits for the rest
            case 3:  # compressed, by its own account
                flagged = struct.pack(">BI", rng.choice((1, 2, 255)), len(message)) + message
                found.append((opened + head + frame(DATA, END_STREAM, 1, flagged), NOW))
            case 4:  # another content type
                other = frame(HEADERS, END_HEADERS, 1, call_head(token, path, kind=b"text/html"))
                body = struct.pack(">BI", 0, len(message)) + message
                found.append((opened + other + frame(DATA, END_STREAM, 1, body), NOW))
            case 5:  # frames whose lengths lie
                found.append((opened + frame(rng.randrange(10), 0, 1, rng.randbytes(20), 2**24 - 1), NEVER))
            case 6:  # headers that are no HPACK
                found.append((opened + frame(HEADERS, END_HEADERS | END_STREAM, 1, rng.randbytes(60)), NOW))
            case 7:  # a stream that is begun and never ended, at once or with a part of its message
                part = frame(DATA, 0, 1, struct.pack(">BI", 0, len(message)) + message[:rng.randrange(3)])
                found.append((opened + head + rng.choice((b"", part)), LATER))
            case 8:  # many streams opened and reset at once
                burst = b"".join(
                    frame(HEADERS, END_HEADERS, 2 * i + 1, call_head(token, path))
                    + frame(RST, 0, 2 * i + 1, struct.pack(">I", 8))
                    for i in range(100)
                )
                found.append((opened + burst, NEVER))
            case _:  # a timeout that is none
                odd = header(b"grpc-timeout", rng.choice((b"-5S", b"99999999999H", b"xS", b"")))
                asked = frame(HEADERS, END_HEADERS, 1, call_head(token, path, extra=odd))
                body = struct.pack(">BI", 0, len(message)) + message
                found.append((opened + asked + frame(DATA, END_STREAM, 1, body), NOW))
    return found


def answered(address: tuple[str, int], context: ssl.SSLContext | None, data: bytes, wait_s: float) -> bool:
    """Send; whether something that ends a stream, or the end of the connection, comes within `wait_s`."""
    end_s = time.monotonic() + wait_s
    with socket.create_connection(address, timeout=wait_s) as plain:
        connection = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        with connection:
            try:
                connection.sendall(data)
                seen = b""
                while (left_s := end_s - time.monotonic()) > 0:
                    connection.settimeout(left_s)
                    more = connection.recv(65536)
                    if not more:
                        return True
                    seen += more
                    if seen.startswith(b"HTTP/1") or _ended(seen):
                        return True
            except (ConnectionError, ssl.SSLError):
                return True
            except TimeoutError:
                return False
    return False


def _ended(seen: bytes) -> bool:
    """Whether a frame ends a stream or the connection."""
    at = 0
    while at + 9 <= len(seen):
        length = int.from_bytes(seen[at : at + 3], "big")
        kind, flags = seen[at + 3], seen[at + 4]
        if kind in (RST, GOAWAY) or (kind in (DATA, HEADERS) and flags & END_STREAM):
            return True
        at += 9 + length
    return False

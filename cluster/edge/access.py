"""How a client reaches a service: in plaintext or over TLS, with a certificate or a token of its own."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

TOKEN_ENV = "OUTRIDER_TOKEN"
ChannelOptions = Sequence[tuple[str, Any]]


class BadAccess(ValueError):
    """The options of a client do not fit together, or name a file that cannot be read; one sentence."""


@dataclass(frozen=True, slots=True)
class Access:
    """One service as its client sees it."""

    address: str  # host:port
    tls: bool = False
    authorities: bytes | None = None  # PEM; None: those of the system
    certificate: bytes | None = None  # PEM, of the client
    key: bytes | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def channel(self, options: ChannelOptions = ()) -> grpc.Channel:
        """A channel of `grpc`."""
        if self.tls:
            channel = grpc.secure_channel(self.address, self._credentials(), options=options)
        else:
            channel = grpc.insecure_channel(self.address, options=options)
        return channel if self.token is None else grpc.intercept_channel(channel, _Shows(self.token))

    def aio_channel(self, options: ChannelOptions = ()) -> grpc.aio.Channel:
        """A channel of `grpc.aio`."""
        shows = [] if self.token is None else [_AioUnary(self.token), _AioStream(self.token)]
        if self.tls:
            return grpc.aio.secure_channel(
                self.address, self._credentials(), options=options, interceptors=shows,  # type: ignore[arg-type]
            )
        return grpc.aio.insecure_channel(self.address, options=options, interceptors=shows)  # type: ignore[arg-type]

    def _credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authorities, self.key, self.certificate)


def reached(address: str | Access) -> Access:
    """In plaintext, without a token, where only an address is given."""
    return Access(address) if isinstance(address, str) else address


def access(
    address: str, *, tls: bool = False, tls_ca: Path | None = None, cert: Path | None = None, key: Path | None = None,
    token_env: str | None = None,
) -> Access:
    """From a command's options. Without `token_env` the token is in OUTRIDER_TOKEN, if that is set.

    Raises `BadAccess`.
    """
    if ":" not in address:
        raise BadAccess(f"--address {address} names no port; write {address or 'HOST'}:9000")
    secure = tls or tls_ca is not None or cert is not None
    if (cert is None) != (key is None):
        raise BadAccess("--cert and --key belong together; give both")
    token = os.environ.get(token_env or TOKEN_ENV) or None
    if token_env is not None and token is None:
        raise BadAccess(f"--token-env {token_env}: this environment variable is not set; put the token into it")
    if token is not None and not (token.isascii() and token.isprintable()):
        raise BadAccess(f"the token in {token_env or TOKEN_ENV} holds characters that no token has; copy it again")
    if token is not None and not secure and not _is_loopback(address):
        raise BadAccess(f"the token would travel to {address} in plaintext; add --tls-ca FILE or --tls")
    return Access(
        address, secure, _read(tls_ca, "--tls-ca"), _read(cert, "--cert"), _read(key, "--key"), token,
    )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: Path | None, option: str) -> bytes | None:
    if path is None:
        return None
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadAccess(f"{option} {path}: cannot be read ({error.strerror})") from error
    if b"-----BEGIN " not in text:
        raise BadAccess(f"{option} {path}: holds nothing in PEM form; give a file that begins with -----BEGIN")
    return text


class _Details(grpc.ClientCallDetails):
    """A call's details with a token."""

    def __init__(self, details: Any, token: str) -> None:
        self.method = details.method
        self.timeout = details.timeout
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = getattr(details, "compression", None)
        self.metadata = (*(details.metadata or ()), ("authorization", f"Bearer {token}"))


class _Shows(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    """Shows the token with every call."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(_Details(details, self._token), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(_Details(details, self._token), request)


def _shown(details: grpc.aio.ClientCallDetails, token: str) -> grpc.aio.ClientCallDetails:
    metadata = grpc.aio.Metadata(*(details.metadata or ()), ("authorization", f"Bearer {token}"))
    return grpc.aio.ClientCallDetails(
        details.method, details.timeout, metadata, details.credentials, details.wait_for_ready,
    )


class _AioUnary(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """The same for `grpc.aio`, which knows an interceptor by one kind of call."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return await continuation(_shown(details, self._token), request)


class _AioStream(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    """The same for streams."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return await continuation(_shown(details, self._token), request)

"""Who may connect to an actor: whoever Ray gave the actor's secret, over TLS where Ray itself uses it.

Each side proves that it knows the secret by a keyed hash of the other's nonce, so the secret itself never travels
here. It reaches a coordinator with its lease, through Ray and Ray's own authentication.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import ssl
from dataclasses import dataclass, field

from actors.wire.codec import SCHEMA

NONCE_BYTES = 16
_HELLO = b"outrider-3 " + SCHEMA


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an actor takes calls."""

    host: str
    port: int
    secret: bytes = field(repr=False)


class Refused(Exception):
    """The two ends do not belong together; one line."""


def new_secret() -> bytes:
    """A fresh secret of one actor."""
    return secrets.token_bytes(32)


def hello(nonce: bytes) -> bytes:
    """First payload of either side: what it speaks, and a challenge."""
    return _HELLO + nonce


def challenge_of(payload: bytes) -> bytes:
    """The nonce in the other side's hello. Raises `Refused`."""
    if len(payload) < len(_HELLO) or payload[: len(_HELLO)] != _HELLO:
        raise Refused("the two ends run different versions: start all pools and the ingress from one version")
    return payload[len(_HELLO) : len(_HELLO) + NONCE_BYTES]


def proof(secret: bytes, role: bytes, nonce: bytes) -> bytes:
    """What only a holder of `secret` can answer to `nonce`; `role` keeps one side's answer from serving the other."""
    return hmac.digest(secret, role + nonce, hashlib.sha256)


def check_proof(secret: bytes, role: bytes, nonce: bytes, answer: bytes) -> None:
    """Raises `Refused` unless `answer` is right."""
    if not hmac.compare_digest(proof(secret, role, nonce), answer):
        raise Refused("the other end does not know this actor's secret")


def tls(purpose: ssl.Purpose) -> ssl.SSLContext | None:
    """The context for Ray's own certificates when Ray encrypts (RAY_USE_TLS=1), with both sides checked; else None.

    Raises KeyError or OSError when the variables that Ray needs are missing or name no readable files.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    authority = os.environ["RAY_TLS_CA_CERT"]
    context = ssl.create_default_context(purpose, cafile=authority)
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    context.verify_mode = ssl.CERT_REQUIRED
    return context

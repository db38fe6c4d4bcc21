"""Bearer tokens: how they are made, what is kept of them, and whom a presented one belongs to. Pure functions.

A token is `outrider.NAME.SECRET`. NAME is public: it finds the line to compare with, appears in logs, and is what
limits count. SECRET is 256 random bits, so one salted SHA-256 is as good as a slow hash: nobody can guess, and a slow
hash would let strangers keep the server busy. A name may have several lines, so that a token can be replaced without
a gap.

A line: `NAME sha256$SALT$DIGEST [requests_per_s=5] [burst=10] [max_concurrent=4]`; `#` begins a comment.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cluster.ingress.allowance import Allowance

PREFIX = "outrider"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
SECRET_BYTES = 32
SALT_BYTES = 16
MAX_TOKENS_PER_NAME = 8  # each is compared with
_SCHEME = "sha256"
_TOKEN = re.compile(rf"{PREFIX}\.({NAME.pattern})\.[A-Za-z0-9_-]{{43}}", re.ASCII)
_DIGEST = re.compile(rf"{_SCHEME}\$([0-9a-f]{{{2 * SALT_BYTES}}})\$([0-9a-f]{{64}})", re.ASCII)


class BadTokens(ValueError):
    """A file of tokens cannot be used; one sentence per mistake, never with a token in it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one token."""

    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    def fits(self, token: str) -> bool:
        """Whether this is the token, in a time that does not depend on where they differ."""
        return hmac.compare_digest(_digest(self.salt, token), self.digest)


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who may send requests: the name of a token, and what it allows."""

    name: str
    allowance: Allowance


_NOBODY = (Kept(bytes(SALT_BYTES), bytes(32)),)  # compared with when the name is not known


@dataclass(frozen=True, slots=True)
class TokenTable:
    """All tokens, by name."""

    kept: Mapping[str, tuple[Kept, ...]]
    callers: Mapping[str, Caller]

    def caller(self, token: str) -> Caller | None:
        """Whose token this is; None: nobody's."""
        match = _TOKEN.fullmatch(token)
        name = match[1] if match is not None else ""
        fits = [kept.fits(token) for kept in self.kept.get(name, _NOBODY)]  # all of them, whichever fits
        return self.callers.get(name) if any(fits) else None


def new_token(name: str) -> tuple[str, str]:
    """A fresh token and the line that is kept of it. Raises `BadTokens` for a name that cannot be one."""
    if not NAME.fullmatch(name):
        raise BadTokens(f"{name!r} is no name for a token; use at most 64 of a-z, 0-9, _ and -, e.g. batch-jobs")
    token = f"{PREFIX}.{name}.{secrets.token_urlsafe(SECRET_BYTES)}"
    salt = secrets.token_bytes(SALT_BYTES)
    return token, f"{name} {_SCHEME}${salt.hex()}${_digest(salt, token).hex()}"


def read_tokens(text: str, origin: str, default: Allowance) -> TokenTable:
    """The table that these lines describe. Raises `BadTokens`, which names `origin` and the line's number."""
    kept: dict[str, list[Kept]] = {}
    callers: dict[str, Caller] = {}
    mistakes: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            name, one, allowance = _entry(words, default)
            before = callers.setdefault(name, Caller(name, allowance))
            if before.allowance != allowance:
                raise BadTokens(f"{name!r} has other limits than in a line before; give all lines of a name the same")
            kept.setdefault(name, []).append(one)
            if len(kept[name]) > MAX_TOKENS_PER_NAME:
                raise BadTokens(f"{name!r} has more than {MAX_TOKENS_PER_NAME} tokens; remove old ones")
        except BadTokens as error:
            mistakes.append(f"{origin} line {number}: {error}")
    if mistakes:
        raise BadTokens("; ".join(mistakes))
    if not kept:
        raise BadTokens(f"{origin}: holds no token; make one with `outrider token new NAME`")
    return TokenTable({name: tuple(each) for name, each in kept.items()}, callers)


def _entry(words: list[str], default: Allowance) -> tuple[str, Kept, Allowance]:
    """One line. No message quotes the second word: it might be a token that somebody pasted."""
    name = words[0]
    if not NAME.fullmatch(name):
        raise BadTokens("does not begin with a name of a-z, 0-9, _ and -; paste what `outrider token new NAME` printed")
    match = _DIGEST.fullmatch(words[1]) if len(words) > 1 else None
    if match is None:
        raise BadTokens(f"{name!r} is not followed by {_SCHEME}$SALT$DIGEST; "
                        f"paste what `outrider token new {name}` printed for the file")
    return name, Kept(bytes.fromhex(match[1]), bytes.fromhex(match[2])), _allowance(words[2:], default)


def _allowance(words: list[str], default: Allowance) -> Allowance:
    """`default` with the limits that a line gives itself."""
    found: dict[str, float] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in ("requests_per_s", "burst", "max_concurrent"):
            raise BadTokens(f"unknown limit {key[:32]!r}; use requests_per_s=, burst= or max_concurrent=")
        try:
            number = float(value) if key == "requests_per_s" else int(value)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise BadTokens(f"{key} is no number above 0; write e.g. {key}=5")
        found[key] = number
    return replace(default, **found)  # type: ignore[arg-type]  # whole where it has to be


def _digest(salt: bytes, token: str) -> bytes:
    return hmac.digest(salt, token.encode(), hashlib.sha256)

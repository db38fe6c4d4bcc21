"""Who a request comes from, and whether it may come now: for gRPC and HTTP alike; knows neither.

Both hand in what stands in `authorization` (metadata, header), and hold the caller for as long as the request runs:

    with guard.admitted(authorization) as caller:   # None when no tokens are configured
        ...
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.ingress.allowance import Allowance, Usage
from cluster.ingress.tokens import BadTokens, Caller, TokenTable, read_tokens

logger = logging.getLogger(__name__)

RELOAD_S = 5.0  # how often a changed file is looked for: so long a removed token still works
TELL_S = 10.0  # refusals are told together, so that strangers cannot fill the log
_MAX_CHARS = 512  # of the header


class Unauthenticated(Exception):
    """No valid token came; `str(error)` is one sentence, which does not say what was wrong with it."""


class TokenFile:
    """A file of tokens that is read again when it has changed, as a mounted secret does."""

    def __init__(self, path: Path, default: Allowance, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `BadTokens` when the file cannot be used."""
        self._path = path
        self._default = default
        self._clock = clock
        self._stamp = self._stamped()
        self._table = self._read()
        self._looked_s = clock()

    def __call__(self) -> TokenTable:
        """The tokens now. A file that has become unusable is told of, and the tokens before it stay."""
        now_s = self._clock()
        if now_s - self._looked_s >= RELOAD_S:
            self._looked_s = now_s
            try:
                stamp = self._stamped()
                if stamp != self._stamp:
                    self._table, self._stamp = self._read(), stamp
                    logger.info("read %d names of tokens from %s", len(self._table.callers), self._path)
            except BadTokens as error:
                logger.error("the tokens that were read before stay in use: %s", error)
        return self._table

    def _stamped(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise BadTokens(f"{self._path}: cannot be read ({error.strerror}); "
                            "put there what `outrider token new NAME` prints for it") from error
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> TokenTable:
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise BadTokens(f"{self._path}: cannot be read ({why})") from error
        return read_tokens(text, str(self._path), self._default)


def tokens_of_env(variable: str, default: Allowance) -> TokenTable:
    """The tokens whose lines stand in an environment variable. Raises `BadTokens`."""
    text = os.environ.get(variable)
    if text is None:
        raise BadTokens(f"the environment variable {variable} is not set; put there what `outrider token new NAME` "
                        "prints for the file")
    return read_tokens(text, variable, default)


class Guard:
    """Lets requests in by their tokens, within each token's limits."""

    def __init__(
        self, tokens: Callable[[], TokenTable] | None, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tokens` gives the ones that are valid now; None: everybody may come."""
        self._tokens = tokens
        self._clock = clock
        self._usage: dict[str, Usage] = {}
        self._num_refused = 0
        self._told_s = -TELL_S

    @contextmanager
    def admitted(self, authorization: str | bytes | None) -> Iterator[str | None]:
        """Hold a request's place among those of its token; gives the token's name, None without tokens.

        Raises `Unauthenticated` and `Exceeded`.
        """
        if self._tokens is None:
            yield None
            return
        caller = self._caller(self._tokens(), authorization)
        usage = self._of(caller)
        usage.begin(self._clock())
        try:
            yield caller.name
        finally:
            usage.end()

    def _caller(self, table: TokenTable, authorization: str | bytes | None) -> Caller:
        if not isinstance(authorization, str) or not authorization:
            self._refused()
            raise Unauthenticated("no token came: send `authorization: Bearer TOKEN`")
        scheme, _, token = authorization[:_MAX_CHARS].partition(" ")
        caller = table.caller(token.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            self._refused()
            raise Unauthenticated("the token is not valid: send `authorization: Bearer TOKEN` with one that is")
        return caller

    def _of(self, caller: Caller) -> Usage:
        """What the caller uses; with new limits it is counted anew."""
        usage = self._usage.get(caller.name)
        if usage is None or usage.allowance != caller.allowance:
            usage = self._usage[caller.name] = Usage(caller.name, caller.allowance, self._clock())
        return usage

    def _refused(self) -> None:
        self._num_refused += 1
        now_s = self._clock()
        if now_s - self._told_s >= TELL_S:
            logger.warning("refused %d requests that brought no valid token", self._num_refused)
            self._num_refused, self._told_s = 0, now_s


def authorization_of(metadata: Iterable[tuple[str, str | bytes]]) -> str | bytes | None:
    """What stands in `authorization`; None without, or with more than one: nobody could say which one counts."""
    found = [value for key, value in metadata if key.lower() == "authorization"]
    return found[0] if len(found) == 1 else None

"""Settings of the bearer tokens that requests must bring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from cluster.config_load import ConfigError
from cluster.config_section import Positive, Section
from cluster.ingress.allowance import Allowance
from cluster.ingress.auth import Guard, TokenFile, tokens_of_env
from cluster.ingress.tokens import BadTokens


class AuthConfig(Section):
    """Which tokens are valid, and what each may use; a line of the file may give its own limits."""

    tokens_file: str | None = Field(
        None, min_length=1, description="file of salted hashes, which `outrider token new` prints; read again when it "
        "changes; on the nodes that run the ingress",
    )
    tokens_env: str | None = Field(
        None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="instead: environment variable that holds such lines",
    )
    requests_per_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="requests of a token per second and ingress replica; null: no limit",
    )
    burst: Positive = Field(10, description="requests of a token that may come at once after a quiet time")
    max_concurrent: Positive | None = Field(
        None, description="requests of a token at once per ingress replica; null: no limit",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.tokens_file is None) == (self.tokens_env is None):
            raise ValueError("set one of tokens_file and tokens_env: where the hashes of the tokens are")
        return self

    def allowance(self) -> Allowance:
        """What a token may use that brings no limits of its own."""
        return Allowance(self.requests_per_s, self.burst, self.max_concurrent)


def make_guard(auth: AuthConfig | None) -> Guard:
    """The guard of a service on this machine. Raises `ConfigError` when its tokens cannot be read."""
    if auth is None:
        return Guard(None)
    try:
        if auth.tokens_file is not None:
            return Guard(TokenFile(Path(auth.tokens_file), auth.allowance()))
        table = tokens_of_env(auth.tokens_env or "", auth.allowance())
    except BadTokens as error:
        raise ConfigError([f"auth: {error}"]) from error
    return Guard(lambda: table)

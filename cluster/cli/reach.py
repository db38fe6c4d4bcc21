"""The options by which a command reaches a service, the same for all commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cluster.cli.output import CommandError
from cluster.edge.access import TOKEN_ENV, Access, BadAccess, access

Tls = Annotated[bool, typer.Option("--tls", help="Over TLS, with the authorities that this system trusts.")]
TlsCa = Annotated[Path | None, typer.Option(metavar="FILE", help="Over TLS, with this authority's certificate.")]
Cert = Annotated[Path | None, typer.Option(metavar="FILE", help="The client's own certificate, for mutual TLS.")]
Key = Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")]
TokenEnv = Annotated[
    str | None, typer.Option(metavar="NAME", help=f"Environment variable that holds the token (default: {TOKEN_ENV}).")
]


def service(
    address: str, tls: bool, tls_ca: Path | None, cert: Path | None, key: Path | None, token_env: str | None
) -> Access:
    """What the options say. Raises `CommandError`."""
    try:
        return access(address, tls=tls, tls_ca=tls_ca, cert=cert, key=key, token_env=token_env)
    except BadAccess as error:
        raise CommandError(str(error)) from error

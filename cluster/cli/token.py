"""`outrider token`: bearer tokens for the clients of a service."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.examples import examples
from cluster.cli.output import CommandError, guard, stderr
from cluster.ingress.tokens import BadTokens, new_token

token = typer.Typer(no_args_is_help=True, help="Tokens that clients show (see `auth` in the configuration).")


@token.callback()
def tokens() -> None:
    """Make typer treat `new` as a subcommand even while it is the only one."""


@token.command(epilog=examples("outrider token new alice >> tokens"))
def new(name: Annotated[str, typer.Argument(help="Whose it is: appears in logs, and has its own limits.")]) -> None:
    """Print a fresh token, once, on standard error, and on standard output the line for the service's tokens_file.

    So `outrider token new alice >> tokens` shows the token and keeps its hash.
    """
    with guard():
        try:
            secret, line = new_token(name)
        except BadTokens as error:
            raise CommandError(str(error)) from error
        stderr.print(f"The token, shown this once:\n\n  {secret}\n\nThe line for auth.tokens_file:\n", markup=False)
        print(line)

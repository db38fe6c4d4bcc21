"""`outrider config`: what a configuration comes to, and what may stand in one."""

from __future__ import annotations

from typing import Annotated

import typer
import yaml

from cluster.cli.examples import examples
from cluster.cli.output import guard, stdout
from cluster.config import load_config
from cluster.config_reference import reference as settings_reference

config = typer.Typer(no_args_is_help=True, help="Check a configuration, or print the reference of all settings.")


@config.command(epilog=examples(
    "outrider config check serve.yaml", "OUTRIDER_SERVER__GRPC_PORT=9001 outrider config check smollm2 > full.yaml",
))
def check(
    source: Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file (vLLM's will do), or a preset.")],
) -> None:
    """Print what a configuration comes to, defaults and environment included, or every mistake in one line."""
    with guard():
        settings = load_config(source, on_note=lambda line: typer.echo(f"# {line}", err=True))
        typer.echo(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False), nl=False)


@config.command(epilog=examples("outrider config reference > configuration.md"))
def reference() -> None:
    """Print the reference of all settings, as Markdown, made from the schema."""
    with guard():
        typer.echo(settings_reference(), nl=False)
        stdout.file.flush()

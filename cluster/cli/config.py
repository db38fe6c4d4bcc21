"""`outrider config`: what a configuration comes to, and what may stand in one."""

from __future__ import annotations

from typing import Annotated

import typer
import yaml

from cluster.cli.output import guard, stdout
from cluster.config import load_config
from cluster.config_reference import reference as settings_reference

config = typer.Typer(no_args_is_help=True, help="Check a configuration, or print the reference of all settings.")


@config.command()
def check(
    source: Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file (vLLM's will do), or a preset.")],
) -> None:
    """Print what a configuration comes to, defaults and environment included, or every mistake in one line.

    Example: outrider config check serve.yaml > full.yaml
    """
    with guard():
        settings = load_config(source, on_note=lambda line: typer.echo(f"# {line}", err=True))
        typer.echo(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False), nl=False)


@config.command()
def reference() -> None:
    """Print the reference of all settings, as Markdown, made from the schema."""
    with guard():
        typer.echo(settings_reference(), nl=False)
        stdout.file.flush()

"""`outrider serve CONFIG`: run the whole service on this machine until it is stopped."""

from __future__ import annotations

import signal
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from cluster.cli import local, models
from cluster.cli.output import guard, stdout
from cluster.config import Config, TierConfig, load_config
from cluster.config_drafters import DraftModelConfig


def serve(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file, or a preset, e.g. smollm2.")],
    grpc_port: Annotated[int | None, typer.Option(help="Overrides server.grpc_port.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Overrides server.http_port.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the log of Ray and its workers.")] = False,
) -> None:
    """Start a local Ray with the service on it; Ctrl-C or SIGTERM stops everything."""
    with guard():
        settings = with_ports(load_config(config, on_note=_note), grpc_port, http_port)
        models.prepare(settings)
        try:
            with local.running(settings, verbose=verbose):
                stdout.print(ladder(settings))
                stdout.print(
                    f"gRPC (plaintext) on [bold]{settings.server.host}:{settings.server.grpc_port}[/], "
                    f"OpenAI's API on http://{escape(settings.server.host)}:{settings.server.http_port}/v1. "
                    f"Try: outrider generate --address 127.0.0.1:{settings.server.grpc_port} 'Hello'"
                )
                stdout.print("Ctrl-C stops the service.")
                stdout.file.flush()
                while True:
                    signal.pause()  # an interrupt raises from here
        except KeyboardInterrupt:
            stdout.print("stopped")


def _note(line: str) -> None:
    """What became of a setting of another program."""
    stdout.print(f"[dim]{escape(line)}[/]")


def with_ports(config: Config, grpc_port: int | None, http_port: int | None) -> Config:
    """The same settings, listening elsewhere; checked again."""
    changes = {"grpc_port": grpc_port, "http_port": http_port}
    server = config.server.model_dump() | {key: port for key, port in changes.items() if port is not None}
    return load_config(config.model_dump(mode="json") | {"server": server}, environ={})


def ladder(config: Config) -> Table:
    """What is served, small to target."""
    title = config.model_name + (" (EMULATED devices)" if any(tier.emulation for tier in config.tiers) else "")
    table = Table("tier", "model", "weights", "ranks", "replicas", title=escape(title))
    default = config.target.label or ""
    for tier in config.tiers:
        drafter = tier.drafter or DraftModelConfig()
        table.add_row(
            tier.name,
            escape(tier.label or default) if drafter.has_model else drafter.kind,
            tier.weights if drafter.has_model and tier.emulation is None else "-",
            str(tier.num_ranks),
            _count(tier),
        )
    return table


def _count(tier: TierConfig) -> str:
    """How many copies of a tier there are."""
    replicas = tier.replicas
    if tier.inline:
        return "inline in the next"
    return str(replicas.min) if replicas.min == replicas.max else f"{replicas.min} to {replicas.max}"

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
    tls_cert: Annotated[str | None, typer.Option(metavar="FILE", help="Overrides server.tls.cert.")] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="Overrides server.tls.key.")] = None,
    tls_client_ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="Clients must bring a certificate that it signed.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the log of Ray and its workers.")] = False,
) -> None:
    """Start a local Ray with the service on it; Ctrl-C or SIGTERM stops everything."""
    with guard():
        loaded = with_ports(load_config(config, on_note=_note), grpc_port, http_port)
        settings = with_tls(loaded, tls_cert, tls_key, tls_client_ca)
        models.prepare(settings)
        try:
            pools = ", ".join(settings.tiers[shared[-1]].name for shared in settings.processes)
            with (
                stdout.status(f"starting Ray and the pools: {escape(pools)} …") as status,
                local.running(settings, verbose=verbose),
            ):
                status.stop()
                stdout.print(ladder(settings))
                for line in reach(settings):
                    stdout.print(line)
                stdout.print("Ctrl-C stops the service.")
                stdout.file.flush()
                try:
                    while True:
                        signal.pause()  # an interrupt raises from here
                finally:
                    status.update(f"stopping: running requests have {local.GRACE_S:.0f} s …")
                    status.start()
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


def with_tls(config: Config, cert: str | None, key: str | None, client_ca: str | None) -> Config:
    """The same settings, with these files; checked again."""
    given = {name: file for name, file in (("cert", cert), ("key", key), ("client_ca", client_ca)) if file is not None}
    if not given:
        return config
    changed = config.model_dump(mode="json")
    changed["server"]["tls"] = (changed["server"]["tls"] or {}) | given
    return load_config(changed, environ={})


def reach(config: Config) -> list[str]:
    """What to tell of the ports, and what is not protected."""
    server, tls = config.server, config.server.tls
    how = "plaintext" if tls is None else "TLS" if tls.client_ca is None else "TLS, clients need a certificate"
    options = ["" if tls is None else " --tls-ca CA_FILE", " --cert FILE --key FILE" if tls and tls.client_ca else ""]
    host = local.LOOPBACK if tls is None else server.host
    where = (
        f"gRPC ({how}) on [bold]{escape(server.host)}:{server.grpc_port}[/], "
        f"OpenAI's API on http{'' if tls is None else 's'}://{escape(server.host)}:{server.http_port}/v1. "
        f"Try: outrider generate --address {escape(host)}:{server.grpc_port}{''.join(options)} 'Hello'"
    )
    lines = [where]
    if server.host not in (local.LOOPBACK, "localhost", "::1"):
        if tls is None:
            lines.append("[yellow]warning:[/] others reach this host in plaintext: prompts, texts and tokens can be "
                         "read on the way; set server.tls or --tls-cert and --tls-key")
        if config.auth is None and (tls is None or tls.client_ca is None):
            lines.append("[yellow]warning:[/] whoever reaches this host may send requests; set auth or --tls-client-ca")
    return lines


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

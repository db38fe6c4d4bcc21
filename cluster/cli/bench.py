"""`outrider bench …`: measure the engine, the service, or the ladder."""

from __future__ import annotations

import typer

from cluster.cli.bench_engine import engine
from cluster.cli.bench_ladder import ladder
from cluster.cli.bench_serve import serve

bench = typer.Typer(
    help="Measure the engine in one process, a running service, or what the ladder brings.", no_args_is_help=True
)
bench.command("engine")(engine)
bench.command("serve")(serve)
bench.command("ladder")(ladder)

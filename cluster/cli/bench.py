"""`outrider bench …`: measure the engine, or the service."""

from __future__ import annotations

import typer

from cluster.cli.bench_engine import engine
from cluster.cli.bench_serve import serve

bench = typer.Typer(help="Measure the engine in one process, or a running service.", no_args_is_help=True)
bench.command("engine")(engine)
bench.command("serve")(serve)

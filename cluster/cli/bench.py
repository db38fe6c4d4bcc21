"""`outrider bench …`: measure the engine, the service, the ladder, or drafters; break a service, or let it scale."""

from __future__ import annotations

import typer

from cluster.cli.bench_chaos import chaos
from cluster.cli.bench_drafters import drafters
from cluster.cli.bench_engine import engine
from cluster.cli.bench_ladder import ladder
from cluster.cli.bench_scaling import scaling
from cluster.cli.bench_serve import serve

bench = typer.Typer(
    help="Measure the engine, a service, the ladder, kinds of drafters, what faults do to a service, or scaling.",
    no_args_is_help=True,
)
bench.command("engine")(engine)
bench.command("serve")(serve)
bench.command("ladder")(ladder)
bench.command("drafters")(drafters)
bench.command("chaos")(chaos)
bench.command("scaling")(scaling)

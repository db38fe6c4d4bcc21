"""`outrider bench …`: measure the engine, the service, the ladder, or drafters; break a service, or let it scale."""

from __future__ import annotations

import typer

from cluster.cli.bench_chaos import chaos
from cluster.cli.bench_drafters import drafters
from cluster.cli.bench_engine import engine
from cluster.cli.bench_ladder import ladder
from cluster.cli.bench_scaling import scaling
from cluster.cli.bench_serve import serve
from cluster.cli.examples import examples

bench = typer.Typer(
    help="Measure the engine, a service, the ladder, kinds of drafters, what faults do to a service, or scaling.",
    no_args_is_help=True,
)
bench.command("engine", epilog=examples(
    "outrider bench engine --only steps,speculation --json > measured.json",
    "outrider bench engine --random-weights llama-1b --device cuda --only steps,decode,batch",
))(engine)
bench.command("serve", epilog=examples(
    "outrider bench serve smollm2 --streams 1,4 --seconds 20",
    "outrider bench serve --address HOST:9000 --prompts question.jsonl --rates 0.5,2 --json",
))(serve)
bench.command("ladder", epilog=examples(
    "outrider bench ladder --only overlap,trees", "outrider bench ladder --json > measured.json",
))(ladder)
bench.command("drafters", epilog=examples(
    "outrider bench drafters --kinds draft,ngram --per-category 1",
    "outrider bench drafters --head eagle=head --questions question.jsonl --json > measured.json",
))(drafters)
bench.command("chaos", epilog=examples(
    "outrider bench chaos --runs 20", "outrider bench chaos --soak 1800 --fault-every 20",
))(chaos)
bench.command("scaling", epilog=examples("outrider bench scaling --plot scaling.png"))(scaling)

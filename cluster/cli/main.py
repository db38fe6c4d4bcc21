"""The console script `outrider`: one command per file."""

from __future__ import annotations

import os

import typer

from cluster.cli.bench import bench
from cluster.cli.config import config
from cluster.cli.demo import demo
from cluster.cli.doctor import doctor
from cluster.cli.examples import examples
from cluster.cli.generate import generate
from cluster.cli.plan import plan
from cluster.cli.serve import serve
from cluster.cli.token import token
from cluster.cli.train import train

app = typer.Typer(
    name="outrider",
    help="Serve a large language model by exact speculative decoding.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # a traceback must not print prompts
)
app.command(epilog=examples(
    "outrider demo", "outrider demo --max-tokens 32 --json | tail -n 1",
))(demo)
app.command(epilog=examples(
    "outrider serve smollm2", "outrider serve my.yaml --grpc-port 9001 --tls-cert service.pem --tls-key service.key",
))(serve)
app.command(epilog=examples(
    "outrider generate 'Name three rivers.' --max-tokens 60",
    "outrider generate 'Write a haiku.' --temperature 0.8 --seed 7 --show-origin",
    "echo 'Once upon a time' | outrider generate - --raw --no-speculation --json",
))(generate)
app.command(epilog=examples(
    "outrider doctor smollm2", "outrider doctor my.yaml --json",
))(doctor)
app.command(epilog=examples(
    "outrider plan --target-ms 30 --draft-ms 2 --agreement 0.8 --streams 16 --target-price 8 --draft-price 1",
    "outrider bench drafters --json > measured.json && outrider plan measured.json --plot plan.png",
))(plan)
if os.environ.get("NO_COLOR"):  # rich would leave out colours, but not bold and underlined
    from typer import rich_utils

    rich_utils.COLOR_SYSTEM = None
app.add_typer(bench, name="bench")
app.add_typer(config, name="config")
app.add_typer(train, name="train")
app.add_typer(token, name="token")

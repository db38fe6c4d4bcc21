"""The console script `outrider`: one command per file."""

from __future__ import annotations

import typer

from cluster.cli.bench import bench
from cluster.cli.config import config
from cluster.cli.demo import demo
from cluster.cli.doctor import doctor
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
app.command()(demo)
app.command()(serve)
app.command()(generate)
app.command()(doctor)
app.command()(plan)
app.add_typer(bench, name="bench")
app.add_typer(config, name="config")
app.add_typer(train, name="train")
app.add_typer(token, name="token")

"""`outrider demo`: the whole service here, one streamed answer, one comparison, nothing left behind."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer
from rich.markup import escape

from cluster.cli import client, compare, local, models
from cluster.cli.generate import figures, print_text
from cluster.cli.output import CommandError, guard, progress, stderr, stdout
from cluster.cli.serve import ladder, with_ports
from cluster.config import Config, load_config

PROMPT = "Explain in three sentences how a scout helps an army."
REQUEST_TIMEOUT_S = 600.0


def demo(
    config: Annotated[str, typer.Option(help="A YAML file or a preset.")] = "smollm2",
    prompt: Annotated[str, typer.Option(help="The prompt whose answer is streamed.")] = PROMPT,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer at most.")] = 64,
    lookahead: Annotated[int | None, typer.Option(min=1, help="Draft tokens per round.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only one JSON object on stdout.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the log of Ray and its workers.")] = False,
) -> None:
    """Serve the built-in model, stream one answer, and compare the target alone with speculation.

    Exits with 0 only if every text was identical both ways and draft tokens were checked.
    """
    with guard():
        screen = stderr if as_json else stdout
        settings = with_ports(load_config(config), *local.free_ports(2))
        models.prepare(settings)
        options = client.Options(temperature=0.0, max_tokens=max_tokens, lookahead_tokens=lookahead)
        started = time.perf_counter()
        with (
            screen.status("starting Ray, the draft pool and the target pool …") as status,
            local.running(settings, verbose=verbose),
        ):
            status.stop()
            screen.print(ladder(settings))
            screen.print(f"ready after {time.perf_counter() - started:.0f} s\n")
            rows = _run(settings, options, prompt, as_json)
            status.update("stopping …")
            status.start()
        screen.print(compare.table(rows))
        outcome = compare.summary(rows)
        if as_json:
            print(json.dumps(outcome, ensure_ascii=False))
        if not outcome["identical"]:
            raise CommandError("the texts differ: speculation changed what the target says")
        if not outcome["conclusive"]:
            raise CommandError("no draft token was checked, so the comparison proves nothing; see --verbose")


def _run(config: Config, options: client.Options, prompt: str, quiet: bool) -> list[compare.Comparison]:
    """Stream one answer, then compare, against the running service."""
    screen = stderr if quiet else stdout
    with client.connect(f"{local.LOOPBACK}:{config.server.grpc_port}") as stub:
        screen.print(f"[bold]> {escape(prompt)}[/]")
        message = client.request(prompt, options)
        answer = (
            client.stream(stub, message, REQUEST_TIMEOUT_S)
            if quiet
            else client.stream(stub, message, REQUEST_TIMEOUT_S, print_text)
        )
        if quiet:
            screen.print(escape(answer.text))
        screen.print(f"\n[dim]{escape(figures(answer))}[/]\n")
        with progress(screen) as bar:
            task = bar.add_task("comparing", total=2 * len(compare.PROMPTS))
            return compare.compare(stub, options, REQUEST_TIMEOUT_S, lambda: bar.advance(task))

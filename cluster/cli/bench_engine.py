"""`outrider bench engine`: the engine's passes, decoding, speculation and accuracy, against floors and transformers."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from cluster.cli import bench_show
from cluster.cli.output import CommandError, guard

if TYPE_CHECKING:  # imported late: they pull in PyTorch
    from cluster.bench.engine.bench import EngineSettings
    from cluster.bench.report import Findings



@dataclass(frozen=True, slots=True)
class DefaultKinds:
    """What is measured unless the user says otherwise."""

    measured: str
    target: str
    draft: str


DEFAULT_KINDS = {
    "cpu": DefaultKinds("fp32,bf16,int8,int8:bfloat16,w8a8,int4", "fp32", "int4"),
    "cuda": DefaultKinds("bf16,fp32", "bf16", "bf16"),
}
DEFAULT_MODEL = "builtin:smollm2"
KV_TOKENS = 4096  # room for the fixed text, and for every batch
SECTIONS = "steps,perplexity,decode,batch,speculation,ranks"


def engine(
    target: Annotated[
        str | None, typer.Option(help="A directory or a hub id; builtin:smollm2 if not given.")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="Draft model; the target itself if not given.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="Kinds of weights: KIND or KIND:ACTIVATIONS, e.g. fp32,int8:bfloat16.")
    ] = None,
    target_weights: Annotated[str | None, typer.Option(help="The target's kind in batches and speculation.")] = None,
    draft_weights: Annotated[str | None, typer.Option(help="The draft's kind in speculation.")] = None,
    random_weights: Annotated[
        str | None, typer.Option(metavar="SHAPE", help="Random weights instead of a model, e.g. llama-1b.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    kernels: Annotated[str, typer.Option(help="On the CPU: native or portable.")] = "native",
    reduction: Annotated[str, typer.Option(help="On a GPU: fast, or fixed (bits that no neighbour changes).")] = "fast",
    page_tokens: Annotated[int, typer.Option(min=1, help="KV page, tokens.")] = 16,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; all cores if not given.")] = None,
    rows: Annotated[str, typer.Option(help="Rows of a pass (one sequence).")] = "1,2,5,8,16",
    contexts: Annotated[str, typer.Option(help="Tokens before those rows.")] = "64,512",
    rounds: Annotated[int, typer.Option("--repeats", min=1, help="Rounds in which every variant runs once.")] = 7,
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of each decoding.")] = 48,
    lookahead: Annotated[int, typer.Option(min=1, help="Draft tokens per round (k).")] = 4,
    only: Annotated[str, typer.Option(help="Parts to measure.")] = SECTIONS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a plot: .png, .svg or .pdf.")] = None,
) -> None:
    """Measure the engine in this process, variants in turn so that the machine's noise hits all alike.

    Figures are medians over rounds; ratios are medians of each round's own ratio.
    """
    with guard():
        if plot is not None:
            _plot_or_fail(plot)
        chosen = Choices(
            target, draft, weights, target_weights, draft_weights, random_weights, device, kernels, reduction,
            page_tokens, threads, rows, contexts, rounds, tokens, lookahead, only,
        )
        try:
            settings = checked(chosen)
        except ValueError as error:
            raise CommandError(str(error)) from error
        _show(settings, _measured(settings, as_json), as_json, plot)


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user said, unchecked; None leaves it to `checked`."""

    target: str | None
    draft: str | None
    weights: str | None
    target_weights: str | None
    draft_weights: str | None
    random_weights: str | None
    device: str
    kernels: str
    reduction: str
    page_tokens: int
    threads: int | None
    rows: str
    contexts: str
    rounds: int
    tokens: int
    lookahead: int
    only: str


def checked(chosen: Choices) -> EngineSettings:
    """Settings to measure with. Raises ValueError with one line."""
    from actors.spec import ModelSpec
    from cluster.bench.engine.bench import EngineSettings
    from cluster.bench.engine.models import Kind

    sections = tuple(part.strip() for part in chosen.only.split(",") if part.strip())
    if not sections or set(sections) - set(SECTIONS.split(",")):
        raise ValueError(f"--only {chosen.only!r}: choose from {SECTIONS}")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", chosen.device):
        raise ValueError(f"--device {chosen.device!r}: choose cpu, cuda or cuda:N")
    if chosen.kernels not in ("native", "portable"):
        raise ValueError(f"--kernels {chosen.kernels!r}: choose native or portable")
    if chosen.reduction not in ("fast", "fixed"):
        raise ValueError(f"--reduction {chosen.reduction!r}: choose fast or fixed")
    if chosen.page_tokens & (chosen.page_tokens - 1):
        raise ValueError(f"--page-tokens {chosen.page_tokens} is not a power of two: use 16, 32 or 64")
    if chosen.random_weights is not None and chosen.target is not None:
        raise ValueError("--target names a model and --random-weights makes one; give one of them")
    defaults = DEFAULT_KINDS["cpu" if chosen.device == "cpu" else "cuda"]
    model = chosen.target or DEFAULT_MODEL
    if chosen.random_weights is not None:
        model = f"random:{chosen.random_weights}"
    num_threads = chosen.threads or os.cpu_count() or 1
    spec = ModelSpec(
        tier=1, model=model, device=chosen.device, kernels=chosen.kernels, reduction=chosen.reduction,
        num_threads=num_threads, kv_tokens=KV_TOKENS, page_tokens=chosen.page_tokens,
    )
    return EngineSettings(
        target=spec, draft=replace(spec, tier=0, model=chosen.draft or model),
        kinds=tuple(dict.fromkeys(Kind.parse(text) for text in (chosen.weights or defaults.measured).split(","))),
        target_kind=Kind.parse(chosen.target_weights or defaults.target),
        draft_kind=Kind.parse(chosen.draft_weights or defaults.draft),
        rows=bench_show.integers(chosen.rows, "--rows"), contexts=bench_show.integers(chosen.contexts, "--contexts"),
        rounds=chosen.rounds, num_tokens=chosen.tokens, lookahead=chosen.lookahead, num_threads=num_threads,
        sections=sections, random_weights=chosen.random_weights is not None,
    )


def _measured(settings: EngineSettings, as_json: bool) -> Findings:
    from actors.loading.builtin import BuiltinModelError
    from actors.loading.errors import ModelNotFound, UnsupportedModel
    from cluster.bench.engine.run import BadSettings, run

    with bench_show.watcher(bench_show.screen(as_json)) as bar:
        try:
            return run(settings, bar)
        except (BadSettings, BuiltinModelError, ModelNotFound, UnsupportedModel) as error:
            raise CommandError(str(error)) from error


def _show(settings: EngineSettings, findings: Findings, as_json: bool, plot: Path | None) -> None:
    from cluster.bench import plot as plots
    from cluster.bench.engine.goals import GOALS

    console = bench_show.screen(as_json)
    if "steps" in findings.details:
        console.print(step_table(findings))
    # The goals were set for this model on two cores; elsewhere they would judge the machine.
    judged = settings.target.model == DEFAULT_MODEL and settings.target.device == "cpu"
    bench_show.show(console, f"engine: {settings.target.model}", findings, GOALS, judged=judged)
    if plot is not None:
        plots.engine(findings, GOALS, plot)
        console.print(f"plot: {plot}")
    if as_json:
        bench_show.print_json(findings, (*GOALS, "fraction_of_bandwidth_floor"))


def _plot_or_fail(path: Path) -> None:
    from cluster.bench import plot as plots

    try:
        plots.check(path)
    except plots.CannotPlot as error:
        raise CommandError(str(error)) from error


def step_table(findings: Findings) -> Table:
    """One line per kind and context, one column per number of rows; floors at the first and last of them."""
    steps: Any = findings.details["steps"]
    counts = sorted({step["rows"] for step in steps if step["context"]})
    machine: Any = findings.details["machine"]
    rates = machine["giga_operations_per_s"]
    table = Table(
        title="ms per pass, by rows of one sequence", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
        caption=f"Floors: {machine['read_gb_per_s']:.3g} GB/s for the bytes that {counts[0]} rows read; "
        f"{', '.join(f'{rates[name]:.3g} ({name})' for name in rates)} G operations/s for {counts[-1]} rows; "
        f"{machine['num_threads']} threads.",
    )
    table.add_column("weights @ context", no_wrap=True)
    for header in (*map(str, counts), "bytes", "reached", "ops"):
        table.add_column(header, justify="right", no_wrap=True)
    found = {(step["kind"], step["context"], step["rows"]): step for step in steps}
    for kind, context in dict.fromkeys((step["kind"], step["context"]) for step in steps if step["context"]):
        first, last = found[kind, context, counts[0]], found[kind, context, counts[-1]]
        table.add_row(
            f"{kind} @ {context}", *(f"{found[kind, context, count]['ms']:.1f}" for count in counts),
            f"{first['bandwidth_floor_ms']:.1f}", f"{first['bandwidth_floor_ms'] / first['ms']:.0%}",
            f"{last['operations_floor_ms']:.1f}",
        )
    return table

"""`outrider plan`: the best k, ladder, overlap and draft pool for given costs, in simulated time."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.cli import bench_show
from cluster.cli.output import CommandError, guard
from cluster.cli.stage import LocalStage

if TYPE_CHECKING:  # imported late: numpy is wanted only here
    from cluster.config import Config
    from cluster.planning.check import Checked
    from cluster.planning.costs import Costs
    from cluster.planning.search import Choice, Estimate


def plan(
    source: Annotated[str, typer.Argument(
        help="A configuration or preset with emulated tiers, or the JSON of `bench drafters`, `engine` or `ladder`.",
    )] = "emulated-70b",
    kind: Annotated[str | None, typer.Option(help="Of measured drafters: this one, not the fastest.")] = None,
    target_ms: Annotated[float | None, typer.Option(min=0.001, help="A pass of the target.")] = None,
    draft_ms: Annotated[float | None, typer.Option(min=0.001, help="A pass of tier 0: one draft token.")] = None,
    hop_ms: Annotated[float | None, typer.Option(min=0.0, help="Network: each call, and each answer.")] = None,
    agreement: Annotated[str | None, typer.Option(
        help="Acceptance of tier 0 by position, e.g. 0.85 or 0.9,0.85,0.8; the last value holds from there on.",
    )] = None,
    streams: Annotated[int, typer.Option(min=1, help="Answers under way at once.")] = 1,
    targets: Annotated[int, typer.Option(min=1, help="Replicas of the target.")] = 1,
    drafters: Annotated[str, typer.Option(help="Replicas of each tier below it to try.")] = "1,2,4",
    lookaheads: Annotated[str, typer.Option(help="k to try: tokens drafted for a target's pass.")] = "1,2,3,5,8,12",
    target_price: Annotated[float, typer.Option(min=0.0, help="Of a target replica, per hour.")] = 0.0,
    draft_price: Annotated[float, typer.Option(min=0.0, help="Of a draft replica, per hour.")] = 0.0,
    workers: Annotated[int, typer.Option(min=1, help="Processes that simulate.")] = 2,
    check: Annotated[bool, typer.Option(
        "--check", help="Serve three of the settings on emulated devices here, and tell the error of the prediction.",
    )] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a plot: .png, .svg or .pdf.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="With --check: show the log of Ray.")] = False,
) -> None:
    """Tell what speculation is worth before buying it: latency, throughput and cost of every setting worth trying."""
    with guard():
        from cluster.bench import plot as plots
        from cluster.planning import show
        from cluster.planning.costs import Given, with_given
        from cluster.planning.search import Load, Prices, choices, search

        config, costs = _source(source, kind)
        try:
            if plot is not None:
                plots.check(plot)
            given = Given(_seconds(target_ms), _seconds(draft_ms), _seconds(hop_ms), _shares(agreement))
            costs = with_given(costs, given)
            load = Load(streams=streams, targets=targets)
            sizes = bench_show.integers(drafters, "--drafters")
            tried = choices(costs, bench_show.integers(lookaheads, "--lookaheads"), sizes, load)
        except ValueError as error:
            raise CommandError(str(error)) from error
        if check and (config is None or given != Given()):
            raise CommandError("--check serves an emulated configuration as it is: name one, and leave the costs out")
        if check and config is not None and any(tier.inline for tier in config.tiers):
            raise CommandError("--check serves pools: name a configuration without inline tiers, e.g. emulated-70b")
        console = bench_show.screen(as_json)
        with bench_show.watcher(console) as bar:
            estimates = search(costs, tried, load, Prices(target_price, draft_price), workers, bar)
        console.print(show.table(costs, estimates, load))
        checked = None
        if check:
            assert config is not None
            checked = _checked(config, costs, tried, estimates, as_json, verbose)
            console.print(show.checked_table(checked))
        if plot is not None:
            show.draw(costs, estimates, plot)
            console.print(f"plot: {plot}")
        if as_json:
            print(json.dumps(show.as_json(costs, estimates, load, checked), ensure_ascii=False), flush=True)


def _source(source: str, kind: str | None) -> tuple[Config | None, Costs]:
    """The configuration, if it is one, and the costs. Raises `CommandError`."""
    from cluster.config import load_config
    from cluster.planning.costs import NoCosts, of_config
    from cluster.planning.measured import SOURCES, of_measured

    try:
        if source.endswith(".json"):
            lines = Path(source).read_text().splitlines()
            return None, of_measured(json.loads(lines[-1] if lines else ""), kind)
        config = load_config(source)
        if kind is not None:
            raise CommandError(f"--kind chooses among measured drafters, and {source} has none: drop it")
        return config, of_config(config)
    except OSError as error:
        raise CommandError(f"{source} cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise CommandError(f"{source} does not end in a line of JSON: give the output of {SOURCES}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{source} is no text: give the output of {SOURCES}") from error
    except NoCosts as error:
        raise CommandError(f"{source}: {error}") from error


def _checked(
    config: Config, costs: Costs, tried: list[Choice], estimates: list[Estimate], as_json: bool, verbose: bool
) -> list[Checked]:
    from cluster.bench.ladder.bench import LadderBench, LadderFailed, LadderSettings, TextsDiffer
    from cluster.bench.report import Findings
    from cluster.planning.check import check, settings_checked
    from cluster.planning.search import fastest

    best = fastest([each for each in estimates if len(each.choice.tiers) == len(costs.devices) - 1]).choice
    with (
        contextlib.closing(LocalStage(verbose=verbose)) as stage,
        bench_show.watcher(bench_show.screen(as_json)) as bar,
    ):
        bench = LadderBench(LadderSettings(num_prompts=4, num_tokens=128), stage, Findings(), bar)
        try:
            return check(bench, config, costs, settings_checked(tried, best))
        except (LadderFailed, TextsDiffer) as error:
            raise CommandError(str(error)) from error


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _shares(text: str | None) -> tuple[float, ...] | None:
    """Shares between 0 and 1. Raises ValueError with one line."""
    if text is None:
        return None
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--agreement {text!r} is no list of shares: write e.g. --agreement 0.85") from None
    if not all(0.0 < share < 1.0 for share in shares):
        raise ValueError(f"--agreement {text!r}: each must lie between 0 and 1")
    return shares

"""`outrider bench chaos`: break a running service under load, and show what it promises, keeps, and how it recovers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from cluster.cli import bench_show, local, models
from cluster.cli.bench_show import print_verdicts
from cluster.cli.output import CommandError, guard
from cluster.cli.serve import with_ports
from cluster.config import Config, load_config

if TYPE_CHECKING:  # imported late: Ray's environment comes first
    from cluster.bench.chaos.bench import Bench
    from cluster.bench.chaos.faults import Fault
    from cluster.bench.report import Findings
    from cluster.bench.serve.soak import Verdict

SOAK_SERVICE = "ladder"


def chaos(
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="A YAML file or a preset; two small services if not given.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Kinds of faults, e.g. kill_draft_actor,delay; all if not given.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each kind.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another order and other victims.")] = 0,
    streams: Annotated[int, typer.Option(min=2, help="Streams under way, greedy and seeded by turns.")] = 6,
    minutes: Annotated[float | None, typer.Option(min=0.5, help="Begin no further run after so long.")] = None,
    soak_s: Annotated[
        float | None, typer.Option("--soak", min=10.0, metavar="SECONDS", help="Instead: one load for so long.")
    ] = None,
    every_s: Annotated[
        float, typer.Option("--fault-every", min=5.0, help="With --soak: seconds between faults.")
    ] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a plot: .png, .svg or .pdf.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the log of Ray and its workers.")] = False,
) -> None:
    """Kill, stall, cut off and fill up parts of a service while streams run; every token is compared.

    Exits with 1 if a promise is broken: a stream that should be kept ends, a token is lost, repeated or another,
    something is not given back, or (with --soak) leaks.
    """
    with guard():
        local.prepare_environment()
        from cluster.bench import plot as plots
        from cluster.bench.chaos.stage import STAGES
        from cluster.bench.report import Findings

        faults = _faults(only)
        try:
            if plot is not None:
                plots.check(plot)
        except ValueError as error:
            raise CommandError(str(error)) from error
        findings, verdicts = Findings(), list["Verdict"]()
        end_s = None if minutes is None else time.monotonic() + 60 * minutes
        names = [SOAK_SERVICE] if soak_s is not None else list(STAGES)
        services = {name: STAGES[name]() for name in names} if config is None else {config: load_config(config)}
        done: set[str] = set()
        for name, settings in services.items():
            own = [fault for fault in faults if fault.name not in done]
            if not own:
                continue
            two_nodes = config is None and name == SOAK_SERVICE
            with _bench(settings, streams, as_json, verbose, two_nodes=two_nodes) as bench:
                if soak_s is not None:
                    verdicts = _soaked(bench, own, seed, soak_s, every_s, findings, as_json)
                else:
                    done |= _table(bench, name, own, runs, seed, end_s, findings, as_json)
        for fault in faults:
            if soak_s is None and fault.name not in done:
                findings.skip(fault.name, "no service that was tried can have it, or the time was up")
        _show(findings, verdicts, as_json, plot)


def _faults(only: str | None) -> list[Fault]:
    """The kinds that are asked for. Raises `CommandError`."""
    from cluster.bench.chaos.faults import BY_NAME, FAULTS

    if only is None:
        return list(FAULTS)
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in BY_NAME]
    if unknown or not names:
        raise CommandError(f"--only {only!r}: choose from {', '.join(BY_NAME)}")
    return [BY_NAME[name] for name in names]


@contextlib.contextmanager
def _bench(config: Config, streams: int, as_json: bool, verbose: bool, *, two_nodes: bool) -> Iterator[Bench]:
    """A service of its own, and what it answers undisturbed."""
    from cluster.bench.chaos import site
    from cluster.bench.chaos.bench import Bench

    console = bench_show.screen(as_json)
    settings = with_ports(config, *local.free_ports(2))
    models.prepare(settings)
    with console.status("starting the service …") as status, site.running(
        settings, two_nodes=two_nodes, verbose=verbose
    ) as running:
        bench = Bench(running, streams)
        try:
            bench.learn()
            status.stop()
            yield bench
        finally:
            bench.close()


def _table(
    bench: Bench, name: str, faults: Sequence[Fault], runs: int, seed: int, end_s: float | None, findings: Findings,
    as_json: bool,
) -> set[str]:
    """Run what this service can have; the names of the kinds that it had."""
    from cluster.bench.chaos import summary
    from cluster.bench.chaos.run import Run
    from cluster.bench.chaos.schedule import schedule
    from cluster.bench.chaos.site import NotWhole

    able = [fault for fault in faults if not bench.site.able(fault)]
    blows, found, console = schedule(able, runs, seed), list[Run](), bench_show.screen(as_json)
    why = ""  # the rest is left out
    with bench_show.watcher(console) as bar:
        bar.section(name, len(blows))
        for blow in blows:
            if end_s is not None and time.monotonic() > end_s:
                why = "--minutes were over"
                break
            try:
                found.append(bench.run(blow))
            except NotWhole as error:
                why = str(error)
                break
            except KeyboardInterrupt:
                why = "interrupted"
                break
            bar.run_done()
            if line := summary.remark(found[-1]):
                console.print(escape(line), style="yellow" if found[-1].passed is None else "red")
    if why:
        findings.skip(f"{name}: {len(blows) - len(found)} of {len(blows)} runs", why)
    if found:
        summary.add_figures(findings, name, found)
    return {run.blow.fault.name for run in found}


def _soaked(
    bench: Bench, faults: Sequence[Fault], seed: int, soak_s: float, every_s: float, findings: Findings, as_json: bool
) -> list[Verdict]:
    """The soak and what it shows."""
    from cluster.bench.chaos import leaks, soak
    from cluster.bench.chaos.schedule import endless

    able = [fault for fault in faults if not bench.site.able(fault)]
    count = int(soak_s / every_s) + 1
    with bench_show.watcher(bench_show.screen(as_json)) as bar:
        bar.section("soak", count)
        found = soak.soak(bench, iter(endless(able, seed, 2 * count)), soak_s, every_s, bar.run_done)
    findings.details["readings"] = [reading.as_json() for reading in found.readings]
    findings.details["missed"] = found.missed
    findings.add("soak_s", found.lasted_s)
    findings.add("soak_streams", float(len(found.streams)))
    findings.add("soak_faults", float(len(found.struck)))
    findings.add("soak_faults_without_victim", float(len(found.missed)))
    verdicts = [*soak.verdicts(found, bench.expected), *leaks.verdicts(found.readings)]
    findings.details["verdicts"] = [
        {"claim": verdict.claim, "holds": verdict.holds, "why": verdict.why} for verdict in verdicts
    ]
    return verdicts


def _show(findings: Findings, verdicts: Sequence[Verdict], as_json: bool, plot: Path | None) -> None:
    from cluster.bench import plot as plots
    from cluster.bench.chaos.summary import table

    console, found = bench_show.screen(as_json), findings.details.get("chaos", [])
    if found:
        console.print(table(found))  # type: ignore[arg-type]  # what `add_figures` put there
    bench_show.show(console, "chaos", findings, {}, judged=False)
    for row in found:  # type: ignore[attr-defined]  # as above
        for line in row["notes"]:
            console.print(f"{escape(row['fault'])}: {escape(line)}", style="red" if row["broken"] else "yellow")
    print_verdicts(console, verdicts)
    if plot is not None:
        (plots.chaos_soak if verdicts else plots.chaos)(findings, plot)
        console.print(f"plot: {plot}")
    if as_json:
        bench_show.print_json(findings, ())
    broken = [row["fault"] for row in found if row["broken"]]  # type: ignore[attr-defined]  # as above
    broken += [verdict.claim for verdict in verdicts if verdict.holds is False]
    if broken:
        raise CommandError(f"not kept: {', '.join(broken)}")

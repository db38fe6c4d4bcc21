"""`outrider bench serve`: load on a running service through gRPC, or on one that it starts itself."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer
from rich import box
from rich.table import Table

from cluster.cli import bench_show, client, local, models, processes, reach
from cluster.cli.output import CommandError, guard
from cluster.cli.serve import ladder, with_ports
from cluster.config import Config, load_config
from cluster.edge.access import Access

if TYPE_CHECKING:  # imported late: numpy and gRPC are wanted only here
    from cluster.bench.report import Findings
    from cluster.bench.serve.bench import ServeSettings
    from cluster.bench.serve.service import Service
    from cluster.bench.serve.soak import Verdict

SECTIONS = "closed,open,batch,chat"
DEFAULT_CONFIG = "smollm2"


def serve(
    config: Annotated[str | None, typer.Argument(metavar="[CONFIG]", help="A YAML file or a preset to start.")] = None,
    address: Annotated[str | None, typer.Option(help="host:port of a service that runs already.")] = None,
    tls: reach.Tls = False, tls_ca: reach.TlsCa = None, cert: reach.Cert = None, key: reach.Key = None,
    token_env: reach.TokenEnv = None,
    streams: Annotated[str, typer.Option(help="Closed loops of so many streams.")] = "1,8,32",
    rates: Annotated[
        str | None, typer.Option(help="Open loops at so many requests/s; shares of the best closed loop if not given.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of each level of load.")] = 12.0,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Spec-Bench questions (JSON lines) instead of built-in prompts.")
    ] = None,
    category: Annotated[str | None, typer.Option(help="Only this category of --prompts.")] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer at most.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of each request.")] = None,
    lookahead: Annotated[
        int | None, typer.Option(min=1, help="Draft tokens per round; the server's choice if not given.")
    ] = None,
    no_speculation: Annotated[bool, typer.Option("--no-speculation", help="The target alone.")] = False,
    slo_ttft_ms: Annotated[float, typer.Option(min=1.0, help="Goodput: first token within.")] = 2000.0,
    slo_itl_ms: Annotated[float, typer.Option(min=1.0, help="Goodput: mean time per token within.")] = 250.0,
    rounds: Annotated[int, typer.Option("--repeats", min=1, help="Rounds of the batch comparison and of chats.")] = 3,
    only: Annotated[str, typer.Option(help="Parts to measure.")] = SECTIONS,
    soak_s: Annotated[
        float | None, typer.Option("--soak", min=1.0, metavar="SECONDS", help="Instead: mixed overload for so long.")
    ] = None,
    overload: Annotated[float, typer.Option(min=0.1, help="Times the measured capacity, with --soak.")] = 1.5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a plot: .png, .svg or .pdf.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the log of Ray and its workers.")] = False,
) -> None:
    """Measure latencies, rates and the control plane's cost under load; with --soak, that overload does no harm.

    Exits with 1 if a soak shows that something does not hold.
    """
    with guard():
        if address is not None and config is not None:
            raise CommandError("CONFIG starts a service and --address names a running one; give one of them")
        settings = _settings(
            streams=streams, rates=rates, seconds=seconds, prompts=prompts, category=category, max_tokens=max_tokens,
            temperature=temperature, seed=seed, lookahead=lookahead, speculation=not no_speculation,
            slo_ttft_ms=slo_ttft_ms, slo_itl_ms=slo_itl_ms, rounds=rounds, only=only, plot=plot,
        )
        there = None if address is None else reach.service(address, tls, tls_ca, cert, key, token_env)
        with _service(config or DEFAULT_CONFIG, there, settings, soak_s is None, as_json, verbose) as service:
            findings, verdicts = _measured(settings, service, soak_s, overload, as_json)
        _show(service, findings, verdicts, as_json, plot)
        broken = [verdict.claim for verdict in verdicts if verdict.holds is False]
        if broken:
            raise CommandError(f"the soak shows that this does not hold: {'; '.join(broken)}")


def _settings(
    *, streams: str, rates: str | None, seconds: float, prompts: Path | None, category: str | None, max_tokens: int,
    temperature: float, seed: int | None, lookahead: int | None, speculation: bool, slo_ttft_ms: float,
    slo_itl_ms: float, rounds: int, only: str, plot: Path | None,
) -> ServeSettings:
    """Checked settings. Raises `CommandError`."""
    from cluster.bench import plot as plots
    from cluster.bench.serve.bench import ServeSettings
    from cluster.bench.serve.figures import LatencyTarget
    from cluster.bench.texts import BUILT_IN, BadPrompts, read_prompts

    sections = tuple(part.strip() for part in only.split(",") if part.strip())
    if not sections or set(sections) - set(SECTIONS.split(",")):
        raise CommandError(f"--only {only!r}: choose from {SECTIONS}")
    if category is not None and prompts is None:
        raise CommandError("--category needs --prompts FILE")
    if lookahead is not None and not speculation:
        raise CommandError("--lookahead and --no-speculation contradict each other; remove one")
    try:
        if plot is not None:
            plots.check(plot)
        return ServeSettings(
            prompts=BUILT_IN if prompts is None else read_prompts(prompts, category),
            streams=bench_show.integers(streams, "--streams"),
            rates=None if rates is None else _rates(rates), duration_s=seconds, max_tokens=max_tokens,
            temperature=temperature, seed=seed, lookahead=lookahead, speculation=speculation, rounds=rounds,
            target=LatencyTarget(slo_ttft_ms, slo_itl_ms), sections=sections,
        )
    except (BadPrompts, ValueError) as error:
        raise CommandError(str(error)) from error


def _rates(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(0 < value < math.inf for value in values):
        raise ValueError(f"--rates {text!r} is no list of positive numbers: write e.g. --rates 0.5,2")
    return values


@contextlib.contextmanager
def _service(
    name: str, address: Access | None, settings: ServeSettings, roomy: bool, as_json: bool, verbose: bool
) -> Iterator[Service]:
    """A running one, or one started here with room for all streams (a soak wants the limits as they are)."""
    from cluster.bench.serve.service import Service, serve_pools

    if address is not None:
        yield Service(address)
        return
    console = bench_show.screen(as_json)
    config = with_ports(load_config(name), *local.free_ports(2))
    if roomy:
        config = with_room(config, max(settings.streams))
    models.prepare(config)
    with console.status("starting the service …") as status, local.running(config, verbose=verbose):
        status.stop()
        console.print(ladder(config))
        yield Service(
            f"{local.LOOPBACK}:{config.server.grpc_port}", config, serve_pools(config, local.APPLICATION),
            service_processes,
        )
        status.update("stopping …")
        status.start()


def service_processes() -> list[psutil.Process]:
    """Everything below this process but the bench's own helpers."""
    found = []
    for process in processes.descendants():
        with contextlib.suppress(psutil.Error):  # it has ended
            if not any("multiprocessing" in word for word in process.cmdline()):
                found.append(process)
    return found


def with_room(config: Config, streams: int) -> Config:
    """The same settings, with room for so many requests at once; more room is kept."""
    changed: dict[str, Any] = config.model_dump(mode="json")
    limits = changed["limits"]
    limits["max_concurrent_requests"] = max(streams, limits["max_concurrent_requests"])
    for tier in changed["tiers"]:
        tier["max_sequences"] = max(streams, tier["max_sequences"])
    return load_config(changed, environ={})


def _measured(
    settings: ServeSettings, service: Service, soak_s: float | None, overload: float, as_json: bool
) -> tuple[Findings, list[Verdict]]:
    from cluster.bench.serve.bench import LoadFailed
    from cluster.bench.serve.client_process import ClientFailed
    from cluster.bench.serve.run import run, run_soak

    with bench_show.watcher(bench_show.screen(as_json)) as bar:
        try:
            if soak_s is not None:
                return run_soak(settings, service, bar, soak_s, overload)
            return run(settings, service, bar), []
        except (LoadFailed, ClientFailed) as error:
            raise CommandError(str(error)) from error


def _show(
    service: Service, findings: Findings, verdicts: list[Verdict], as_json: bool, plot: Path | None
) -> None:
    from cluster.bench import plot as plots
    from cluster.bench.serve.goals import GOALS

    console = bench_show.screen(as_json)
    if "levels" in findings.details:
        console.print(rate_table(findings))
        console.print(round_table(findings))
    # The goals were set for this model on two cores; elsewhere they would judge the machine.
    target = service.config.target if service.config is not None else None
    judged = target is not None and target.label == "builtin:smollm2" and target.device == "cpu" and not verdicts
    title = f"service: {service.name}" + (" (EMULATED devices)" if _emulated(service) else "")
    bench_show.show(console, title, findings, GOALS, judged=judged)
    bench_show.print_verdicts(console, verdicts)
    if plot is not None:
        (plots.soak if verdicts else plots.serve)(findings, plot)
        console.print(f"plot: {plot}")
    if as_json:
        bench_show.print_json(findings, () if verdicts else tuple(GOALS))


def _emulated(service: Service) -> bool:
    """Whether what was measured is no hardware."""
    if service.config is not None:
        return any(tier.emulation is not None for tier in service.config.tiers)
    with client.connect(service.address) as stub:
        return client.is_emulated(stub)


def rate_table(findings: Findings) -> Table:
    """Rates and latencies of each level of load."""
    levels: Any = findings.details["levels"]
    table = Table(title="load through gRPC (p50 / p99)", box=box.SIMPLE_HEAD)
    table.add_column("load", no_wrap=True)
    for header in ("tokens/s", "requests/s", "good/s", "first token, ms", "per token, ms"):
        table.add_column(header, justify="right", no_wrap=True)
    for level in levels:
        table.add_row(
            level["name"], f"{level['tokens_per_s']:.1f}", f"{level['requests_per_s']:.2f}",
            f"{level['goodput_requests_per_s']:.2f}",
            _pair(level["first_token_ms_p50"], level["first_token_ms_p99"]),
            _pair(level["token_interval_ms_p50"], level["token_interval_ms_p99"]),
        )
    return table


def round_table(findings: Findings) -> Table:
    """Speculation, control plane and failures of each level of load."""
    levels: Any = findings.details["levels"]
    table = Table(title="rounds", box=box.SIMPLE_HEAD)
    table.add_column("load", no_wrap=True)
    for header in ("MAT", "acceptance", "control, ms/round", "requests"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("not OK")
    for level in levels:
        others = {status: count for status, count in level["statuses"].items() if status != "OK"}
        table.add_row(
            level["name"], _number(level["mat"], ".2f"), _number(level["acceptance"], ".0%"),
            _number(level["control_ms_per_round"], ".2f"), str(level["num_requests"]),
            ", ".join(f"{count} {status}" for status, count in others.items()) or "-",
        )
    return table


def _pair(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.0f} / {high:.0f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)

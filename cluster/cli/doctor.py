"""`outrider doctor`: looks at a target and its draft, and says whether speculation will pay and with which k."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from cluster.cli import bench_show
from cluster.cli.output import CommandError, guard

if TYPE_CHECKING:  # imported late: they pull in PyTorch
    from cluster.bench.drafters.doctor import Diagnosis, DoctorSettings
    from cluster.config import Config

MARKS = {"ok": "[green]ok     [/]", "warning": "[yellow]warning[/]", "problem": "[red]problem[/]"}


def doctor(
    config: Annotated[
        str | None, typer.Argument(help="A preset or YAML file with a draft and a target; smollm2 if nothing is given.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Instead of a configuration: the target model.")] = None,
    draft: Annotated[str | None, typer.Option(help="Instead of a configuration: the draft model.")] = None,
    draft_weights: Annotated[str | None, typer.Option(help="The draft's weights, with --draft.")] = None,
    kind: Annotated[str | None, typer.Option(help="Another kind of drafter over the same target.")] = None,
    head: Annotated[str | None, typer.Option(metavar="DIR", help="Head or model of that kind.")] = None,
    weights: Annotated[str | None, typer.Option(help="The target's weights; as configured if not given.")] = None,
    questions_file: Annotated[
        Path | None, typer.Option("--questions", metavar="FILE", help="Sample from Spec-Bench's question.jsonl.")
    ] = None,
    per_category: Annotated[int, typer.Option(min=1, help="Questions of each family.")] = 1,
    tokens: Annotated[int, typer.Option(min=16, help="Tokens of each answer at most.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, max=5, help="Of the sample.")] = 0.0,
    max_lookahead: Annotated[int, typer.Option(min=2, max=64, help="Longest draft considered.")] = 8,
    hop_ms: Annotated[float, typer.Option(min=0, help="Network between pools: each call and each answer, ms.")] = 0.0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; all cores if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")] = False,
) -> None:
    """Check tokenizers and sizes, measure both models and their agreement, and say whether drafting will pay.

    The expected speed-up comes from the goodput model that `speculation.lookahead: auto` decides by.
    """
    with guard():
        base = _base(config, target, draft, draft_weights)
        settings = _settings(base, kind, head, weights, questions_file, per_category, tokens, temperature,
                             max_lookahead, hop_ms, threads)
        found = _examined(settings, as_json)
        console = bench_show.screen(as_json)
        for finding in found.findings:
            console.print(f"{MARKS[finding.level.value]} {escape(str(finding))}")
        if as_json:
            print(json.dumps(found.as_json(), ensure_ascii=False), flush=True)


def _base(config: str | None, target: str | None, draft: str | None, draft_weights: str | None) -> Config:
    """The pair to look at. Raises `CommandError`, `ConfigError`."""
    from cluster.config import load_config

    if config is not None and (target or draft):
        raise CommandError("a configuration and --target or --draft name the models twice; give one of them")
    if draft_weights is not None and draft is None:
        raise CommandError("--draft-weights needs --draft")
    if draft is not None and target is None:
        raise CommandError("--draft without --target: name the target model too")
    if target is None:
        base = load_config(config or "smollm2")
        if any(tier.emulation is not None for tier in base.tiers):
            raise CommandError(f"{config} has emulated tiers, which run no model: see `outrider bench ladder`")
        return base
    lower: dict[str, Any] = {"name": "draft", "model": draft, **({"weights": draft_weights} if draft_weights else {})}
    tiers = [*([lower] if draft else []), {"name": "target", "model": target}]
    return load_config({"tiers": tiers}, environ={})


def _settings(
    base: Config, kind: str | None, head: str | None, weights: str | None, questions_file: Path | None,
    per_category: int, tokens: int, temperature: float, max_lookahead: int, hop_ms: float, threads: int | None,
) -> DoctorSettings:
    from cluster.bench.drafters import questions
    from cluster.bench.drafters.doctor import DoctorSettings
    from cluster.bench.texts import BadPrompts
    from cluster.config_drafters import KINDS

    if kind is not None and kind not in KINDS:
        raise CommandError(f"--kind {kind!r}: choose from {', '.join(KINDS)}")
    if head is not None and kind is None:
        raise CommandError("--head needs --kind: say which kind of drafter it is")
    if len(base.tiers) == 1 and kind is None:
        raise CommandError("there is a target but no draft; name one with --draft, or a kind with --kind")
    try:
        if questions_file is None:
            prompts = questions.built_in(per_category)
        else:
            found = questions.spec_bench(questions_file)
            prompts = questions.chosen(found, questions.CATEGORIES, per_category, lambda prompt: True)
    except BadPrompts as error:
        raise CommandError(str(error)) from error
    return DoctorSettings(
        base, prompts, kind=kind, heads={kind: head} if kind and head else {}, num_tokens=tokens,
        max_lookahead=max_lookahead, temperature=temperature, hop_ms=hop_ms,
        num_threads=threads or os.cpu_count() or 1, weights=weights,
    )


def _examined(settings: DoctorSettings, as_json: bool) -> Diagnosis:
    from actors.drafters.calibration import CalibrationFailed
    from actors.engine.native.build import KernelBuildError
    from cluster.bench.drafters.doctor import examine

    with bench_show.watcher(bench_show.screen(as_json)) as bar:
        try:
            return examine(settings, bar)
        except (ValueError, CalibrationFailed, KernelBuildError) as error:
            # Models, heads, layers and tokenizers that are missing or do not fit are kinds of ValueError.
            raise CommandError(" ".join(str(error).split())) from error

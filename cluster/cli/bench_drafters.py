"""`outrider bench drafters`: every kind of drafter on the same questions, and what lossy policies cost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.cli import bench_show
from cluster.cli.output import CommandError, guard

if TYPE_CHECKING:  # imported late: they pull in PyTorch
    from cluster.bench.drafters.bench import DraftersSettings
    from cluster.bench.report import Findings

CATEGORIES = "mt_bench,translation,summarization,qa,math_reasoning,rag"
PARTS = "drafters,lossy,peers"


def drafters(
    config: Annotated[str, typer.Argument(help="A preset or a YAML file, whose last tier is the target.")] = "smollm2",
    kinds: Annotated[
        str | None, typer.Option(help="Kinds of drafters, and preset for the configuration's own; all if not given.")
    ] = None,
    head: Annotated[
        list[str] | None, typer.Option(metavar="KIND=DIR", help="Head or model of a kind; may be repeated.")
    ] = None,
    questions_file: Annotated[
        Path | None, typer.Option("--questions", metavar="FILE", help="Spec-Bench's question.jsonl; else made-up ones.")
    ] = None,
    categories: Annotated[str, typer.Option(help="Families of questions.")] = CATEGORIES,
    per_category: Annotated[int, typer.Option(min=1, help="Questions of each family.")] = 3,
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of each answer at most.")] = 96,
    temperature: Annotated[str, typer.Option(help="Temperatures, e.g. 0 or 0,1.")] = "0,1",
    lookahead: Annotated[int, typer.Option(min=1, max=64, help="Draft tokens per round (k).")] = 4,
    weights: Annotated[str | None, typer.Option(help="The target's weights; as configured if not given.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; all cores if not given.")] = None,
    max_prompt: Annotated[int, typer.Option(min=8, help="Longer questions are left out, tokens.")] = 1024,
    only: Annotated[str, typer.Option(help="Parts to measure.")] = PARTS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a plot: .png, .svg or .pdf.")] = None,
) -> None:
    """Measure drafters in this process: acceptance by position, MAT, speed-up, memory, by family of questions.

    Kinds and the target alone answer each question in turn, so that the machine's noise hits all alike. Greedy texts
    are compared with the target's own; one that differs fails the command.
    """
    with guard():
        settings = checked(
            config, kinds, head or [], questions_file, categories, per_category, tokens, temperature, lookahead,
            weights, threads, max_prompt, only, plot,
        )
        findings = _measured(settings, as_json)
        _show(settings, findings, as_json, plot)


def checked(
    config: str, kinds: str | None, heads: list[str], questions_file: Path | None, categories: str, per_category: int,
    tokens: int, temperature: str, lookahead: int, weights: str | None, threads: int | None, max_prompt: int, only: str,
    plot: Path | None,
) -> DraftersSettings:
    """Settings to measure with. Raises `CommandError` and `ConfigError` with one line."""
    from cluster.bench import plot as plots
    from cluster.bench.drafters import questions
    from cluster.bench.drafters.bench import PARTS as ALL_PARTS
    from cluster.bench.drafters.bench import PRESET, DraftersSettings
    from cluster.bench.texts import BadPrompts
    from cluster.config import load_config
    from cluster.config_drafters import KINDS

    base = load_config(config)
    if any(tier.emulation is not None for tier in base.tiers):
        raise CommandError(f"{config} has emulated tiers, which run no model: see `outrider bench ladder`")
    try:
        if plot is not None:
            plots.check(plot)
        given = dict(_pair(text, KINDS) for text in heads)
        chosen = _names(kinds or ",".join((PRESET, *KINDS)), (PRESET, *KINDS), "--kinds")
        wanted = _names(categories, questions.CATEGORIES, "--categories")
        if questions_file is None:
            prompts, source = questions.built_in(per_category), "made up (seed 0)"
        else:
            prompts, source = questions.spec_bench(questions_file), questions_file.name
        return DraftersSettings(
            base, prompts, source, kinds=chosen, heads=given, categories=wanted, per_category=per_category,
            temperatures=_temperatures(temperature), num_tokens=tokens, lookahead=lookahead,
            num_threads=threads or os.cpu_count() or 1, weights=weights, max_prompt_tokens=max_prompt,
            parts=_names(only, ALL_PARTS, "--only"),
        )
    except (BadPrompts, ValueError) as error:
        raise CommandError(str(error)) from error


def _pair(text: str, known: tuple[str, ...]) -> tuple[str, str]:
    kind, _, where = text.partition("=")
    if not where or kind not in known:
        raise ValueError(f"--head {text!r}: write KIND=DIR, with one of {', '.join(known)}")
    return kind, where


def _names(text: str, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names or set(names) - set(known):
        raise ValueError(f"{option} {text!r}: choose from {','.join(known)}")
    return names


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        values = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        values = (-1.0,)
    if not all(0 <= value <= 5 for value in values):
        raise ValueError(f"--temperature {text!r} is no list of temperatures from 0 to 5: write e.g. 0,1")
    return values


def _measured(settings: DraftersSettings, as_json: bool) -> Findings:
    from actors.loading.builtin import BuiltinModelError
    from actors.loading.errors import ModelNotFound, UnsupportedModel
    from cluster.bench.drafters.bench import TextsDiffer, measure
    from cluster.bench.texts import BadPrompts

    with bench_show.watcher(bench_show.screen(as_json)) as bar:
        try:
            return measure(settings, bar)
        except (BadPrompts, BuiltinModelError, ModelNotFound, UnsupportedModel, TextsDiffer) as error:
            raise CommandError(str(error)) from error


def _show(settings: DraftersSettings, findings: Findings, as_json: bool, plot: Path | None) -> None:
    from cluster.bench.drafters import show
    from cluster.bench.drafters.bench import GOALS

    console = bench_show.screen(as_json)
    for table in show.tables(findings):
        console.print(table)
    judged = settings.base.target.model == "builtin:smollm2" and settings.base.target.device == "cpu"
    bench_show.show(console, f"drafters: {settings.source}", findings, GOALS, judged=judged)
    if plot is not None:
        show.draw(findings, plot)
        console.print(f"plot: {plot}")
    if as_json:
        bench_show.print_json(findings, tuple(GOALS))

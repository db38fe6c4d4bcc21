"""`outrider train …`: data written by the target, and a command for each kind of drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cluster.cli.examples import examples
from cluster.cli.output import CommandError, guard, stdout
from cluster.cli.train_options import DEFAULT_TARGET, DEFAULT_TOKENS, kind_command, numbers

# Of the kinds, which are defined where PyTorch is needed; a test compares.
KINDS = ("draft", "parallel", "eagle", "medusa", "early-exit", "block")


class Kinds(TyperGroup):
    """Makes the command of a kind when it is asked for: its options are read off a class that needs PyTorch."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Data first, then the kinds."""
        return [*super().list_commands(ctx), *KINDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """None: there is no such command."""
        return kind_command(cmd_name) if cmd_name in KINDS else super().get_command(ctx, cmd_name)


train = typer.Typer(cls=Kinds, help="Train drafters from the target alone.", no_args_is_help=True)


@train.callback()
def _group() -> None:
    """Train drafters from the target alone: `data` first, or have any kind sample what it needs."""


@train.command(epilog=examples(
    "outrider train data corpus", "outrider train data corpus --prompts prompts.jsonl --only-prompts --device cuda",
))
def data(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Where the corpus is, or is to be, kept.")],
    target: Annotated[str, typer.Option(help="A directory or a hub id.")] = DEFAULT_TARGET,
    tokens: Annotated[int, typer.Option(min=1, help="Stop when it holds so many, prompts included.")] = DEFAULT_TOKENS,
    prompts: Annotated[
        list[Path] | None, typer.Option(help="Prompts to be answered: JSONL, or text with one a line. Repeatable.")
    ] = None,
    only_prompts: Annotated[bool, typer.Option("--only-prompts", help="Answer those prompts, and write none.")] = False,
    weights: Annotated[
        str, typer.Option(help="fp32, bf16, int8, ...: of the engine that writes; int8 on a CPU, else bf16.")
    ] = "",
    dtype: Annotated[
        str, typer.Option(help="Activations: float32, bfloat16 or float16; float32 on a CPU, else bfloat16.")
    ] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; all cores if not given.")] = None,
    parallel: Annotated[int, typer.Option(min=0, help="Texts written at once; 0: 24 on a CPU, 192 on a GPU.")] = 0,
    temperatures: Annotated[
        str, typer.Option(help="Of answers, one for each conversation; repeat one to have more of it.")
    ] = "0,0,0.7,1",
    question_tokens: Annotated[int, typer.Option(min=8, help="Longest question.")] = 256,
    answer_tokens: Annotated[int, typer.Option(min=8, help="Longest answer.")] = 384,
    held_out: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share that is never trained on.")] = 0.05,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other conversations.")] = 0,
) -> None:
    """Let the target write prompts and answers. Interrupt it and give the same command to go on."""
    with guard():
        from actors.training.data.make import SamplingSettings
        from actors.training.data.recipe import Recipe
        from cluster.cli.train_run import sample_corpus

        if only_prompts and not prompts:
            raise CommandError("--only-prompts needs prompts: name a file with --prompts")
        recipe = Recipe(
            seed=seed, answer_temperatures=numbers(temperatures, "--temperatures"),
            max_question_tokens=question_tokens, max_answer_tokens=answer_tokens, held_out_share=held_out,
        )
        on_cpu = device == "cpu"
        settings = SamplingSettings(
            target, out, tokens, recipe, tuple(prompts or ()), only_prompts, weights or ("int8" if on_cpu else "bf16"),
            dtype or ("float32" if on_cpu else "bfloat16"), device, threads, parallel,
        )
        stdout.print(sample_corpus(settings))

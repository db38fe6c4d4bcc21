"""The options of `outrider train KIND`: those that all kinds share, and those of the kind's own class."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.main import get_command_from_info
from typer.models import CommandInfo

from cluster.cli.examples import examples, unwrapped
from cluster.cli.output import CommandError, guard

DEFAULT_TARGET = "builtin:smollm2"
DEFAULT_TOKENS = 200_000


@dataclass(frozen=True, slots=True)
class Shared:
    """What every kind is told; the fields are the options."""

    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where weights, card and checkpoint go.")]
    target: Annotated[str, typer.Option(help="A directory or a hub id.")] = DEFAULT_TARGET
    data: Annotated[
        Path | None, typer.Option(help="A corpus of `outrider train data`; OUT/data, sampled first, if not given.")
    ] = None
    tokens: Annotated[int, typer.Option(min=1, help="Of a corpus that is sampled first.")] = DEFAULT_TOKENS
    draft_vocab: Annotated[int, typer.Option(min=0, help="Ids that it knows, the most frequent ones; 0: all.")] = 8192
    epochs: Annotated[float, typer.Option(min=0.0, help="How often each text is seen.")] = 3.0
    num_steps: Annotated[int, typer.Option(min=0, help="Steps instead of epochs.")] = 0
    minutes: Annotated[float, typer.Option(min=0.0, help="Be done by then, sampling not counted; 0: no bound.")] = 0.0
    lr: Annotated[float, typer.Option(min=0.0, help="Highest learning rate; 0: the kind's own.")] = 0.0
    weight_decay: Annotated[float, typer.Option(min=0.0, help="Of matrices.")] = 0.0
    batch_tokens: Annotated[int, typer.Option(min=1, help="Of a batch, padding included, on each device.")] = 2048
    accumulate: Annotated[int, typer.Option(min=1, help="Batches per step.")] = 1
    max_tokens: Annotated[int, typer.Option(min=8, help="Of a text; the rest is cut off.")] = 1024
    seed: Annotated[int, typer.Option(min=0, help="Of initial weights and order.")] = 0
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu"
    dtype: Annotated[str, typer.Option(help="The target's weights: float32, bfloat16 or float16.")] = "float32"
    precision: Annotated[str, typer.Option(help="fp32, or bf16 (autocast).")] = "fp32"
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: all cores.")] = 0
    num_gpus: Annotated[int, typer.Option(min=0, help="Processes, with a GPU each unless --device cpu.")] = 0
    zero: Annotated[
        int | None, typer.Option(min=0, max=3, help="DeepSpeed ZeRO stage; 1 among several processes.")
    ] = None
    store_features: Annotated[
        bool, typer.Option("--store-features", help="Store what the target says of the data, to ask it once only.")
    ] = False
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps.")] = 200
    measured_tokens: Annotated[int, typer.Option(min=1, help="Drafted tokens a round, in the measure.")] = 4
    measured_texts: Annotated[int, typer.Option(min=1, help="Conversations to measure on, at most.")] = 64
    restart: Annotated[bool, typer.Option("--restart", help="Forget the checkpoint in OUT.")] = False


def kind_command(name: str) -> Any:
    """The command of a kind."""
    from actors.training.registry import kind_class

    kind = kind_class(name)
    own = list(_own_parameters(kind))
    shared = list(_shared_parameters())

    def command(**given: Any) -> None:
        with guard():
            from cluster.cli.train_run import train_kind

            options = {p.name: _read(given[_option_name(p.name)], p.default, p.name) for p in own_fields}
            rest = {name: value for name, value in given.items() if name in shared_names}
            train_kind(kind(**options), Shared(**rest))

    own_fields = [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default) for f in fields(kind)]
    shared_names = {parameter.name for parameter in shared}
    command.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    command.__doc__ = f"Train {kind.summary}."
    used = (f"outrider train {name} OUT --data corpus --minutes 30", f"outrider train {name} OUT --device cuda")
    info = CommandInfo(name=name, callback=command, epilog=unwrapped(examples(*used)))
    return get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None)


def numbers(text: str, option: str) -> tuple[float, ...]:
    """Numbers written 0,0.7,1. Raises `CommandError`."""
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found or not all(0 <= value < math.inf for value in found):
        raise CommandError(f"{option} {text!r}: write numbers like 0,0.7,1")
    return found


def _shared_parameters() -> Iterator[inspect.Parameter]:
    hints = get_type_hints(Shared, include_extras=True)
    for parameter in inspect.signature(Shared).parameters.values():
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])


def _own_parameters(kind: Any) -> Iterator[inspect.Parameter]:
    """Tuples are written 2,15,28. A name that is a shared one's, too, gets `own_` before it."""
    for one in fields(kind):
        default: Any = one.default
        if isinstance(default, tuple):
            default = ",".join(map(str, default))
        annotation: Any = Annotated[type(default), typer.Option(help=one.metadata["help"])]
        yield inspect.Parameter(
            _option_name(one.name), inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )


def _option_name(name: str) -> str:
    return f"own_{name}" if name in Shared.__dataclass_fields__ else name


def _read(value: Any, default: Any, name: str) -> Any:
    if not isinstance(default, tuple):
        return value
    try:
        return tuple(int(part) for part in str(value).split(",") if part.strip())
    except ValueError:
        raise CommandError(f"--{name.replace('_', '-')} {value!r}: write whole numbers like 2,15,28") from None

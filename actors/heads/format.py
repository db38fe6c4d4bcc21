"""The directory of a draft head: `config.json`, `model.safetensors`, and `README.md`, its model card.

`config.json` is `{"outrider_head": {"kind": ..., "format": 1, ...}}`, the fields of the kind's `HeadConfig`. A head
holds only what it has of its own: embedding (and output head, where that was not trained) are the target's.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from actors.heads.directory import CONFIG, SECTION, BadHead, read_section

__all__ = [
    "FORMAT", "WEIGHTS", "BadHead", "HeadConfig", "check_fits", "head_kind", "load_config", "load_head", "load_tensors",
    "save_head",
]

FORMAT = 1
WEIGHTS = "model.safetensors"
_CARD = "README.md"


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """What all kinds share."""

    kind: ClassVar[str]

    hidden: int  # of the target
    vocab_size: int  # rows of the target's output head
    num_target_layers: int  # decoder layers of the target
    feature_layers: tuple[int, ...]  # after which of them (1: the first) the residual stream is read, ascending
    draft_vocab_size: int  # rows of the head's own output; `vocab_size`: all
    target: str = ""  # the model it was trained for, as a user would name it; for messages and the card

    def __post_init__(self) -> None:
        layers, last = self.feature_layers, self.num_target_layers
        if not layers or list(layers) != sorted(set(layers)) or not 1 <= layers[0] <= layers[-1] <= last:
            raise ValueError(f"feature_layers {list(layers)} must ascend between 1 and {last}")
        if not 1 <= self.draft_vocab_size <= self.vocab_size:
            raise ValueError(f"draft_vocab_size {self.draft_vocab_size} must lie between 1 and {self.vocab_size}")

    @property
    def feature_size(self) -> int:
        """Values of a position's features."""
        return len(self.feature_layers) * self.hidden

    def to_json(self) -> dict[str, Any]:
        """The section of `config.json`."""
        return {"kind": self.kind, "format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> Self:
        """Inverse of `to_json`. `where` is for messages. Raises `BadHead`."""
        if values.get("format") != FORMAT:
            raise BadHead(
                f"{where} has the format {values.get('format')!r}, this version reads {FORMAT}: train the head again, "
                "or update outrider"
            )
        try:
            config: Self = _read(cls, {k: v for k, v in values.items() if k not in ("kind", "format")})
        except (TypeError, ValueError) as error:
            raise BadHead(f"{where}: its config.json cannot be used: {error}: copy or train the head again") from error
        return config


C = TypeVar("C", bound=HeadConfig)


def save_head(directory: Path | str, config: HeadConfig, tensors: Mapping[str, torch.Tensor], card: str = "") -> None:
    """Write a head; tensors keep their dtypes. `card`: its README in Markdown."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
    (folder / _CARD).write_text(card or f"# {config.kind} head for {config.target or 'its target'}\n")
    (folder / CONFIG).write_text(json.dumps({SECTION: config.to_json()}, indent=2) + "\n")  # last: then it is whole


def head_kind(directory: Path | str) -> str:
    """Which sort of head a directory holds. Raises `BadHead`."""
    return str(read_section(directory).get("kind"))


def load_config(directory: Path | str, of: type[C]) -> C:
    """Settings of a head. Raises `BadHead`."""
    return of.from_json(read_section(directory, of.kind), f"{directory}")


def load_head(directory: Path | str, of: type[C]) -> tuple[C, dict[str, torch.Tensor]]:
    """Settings and tensors (on the CPU, as stored) of a head. Raises `BadHead`."""
    config = load_config(directory, of)
    try:
        return config, load_file(Path(directory).expanduser() / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise BadHead(f"{directory}: {WEIGHTS} is missing or damaged: copy or train the head again") from error


def check_fits(config: HeadConfig, target: Any, head_name: str, target_name: str) -> None:
    """Raises `BadHead` where a head was trained for another target. `target`: its transformers configuration."""
    text = target.get_text_config()
    for what, own, its in (
        ("hidden size", config.hidden, int(text.hidden_size)),
        ("vocabulary", config.vocab_size, int(text.vocab_size)),
        ("number of layers", config.num_target_layers, int(text.num_hidden_layers)),
    ):
        if own != its:
            made_for = f" (made for {config.target})" if config.target else ""
            raise BadHead(
                f"the head {head_name}{made_for} does not fit {target_name}: its {what} is {own}, the target's {its}; "
                "name a head that was trained for this target"
            )


def load_tensors(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], where: str) -> None:
    """Fill `module` (all its parameters and saved buffers), casting. Raises `BadHead`."""
    own = module.state_dict()
    odd = sorted(set(own) ^ set(tensors))
    if odd:
        raise BadHead(f"{where}: {WEIGHTS} and config.json do not belong together ({odd[0]}): copy the head again")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise BadHead(
                f"{where}: {name} has the shape {list(tensor.shape)}, config.json says {list(own[name].shape)}: "
                "copy the head again"
            )
    module.load_state_dict(dict(tensors))


def _read(cls: Any, values: Any) -> Any:
    """A dataclass of plain numbers, strings, tuples and dataclasses, from JSON. Raises TypeError or ValueError."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{cls.__name__} is {values!r}")
    hints = get_type_hints(cls)
    names = {field.name for field in dataclasses.fields(cls)}
    if unknown := sorted(set(values) - names):
        raise ValueError(f"{unknown[0]} is unknown")
    needed = {field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING}
    if missing := sorted(needed - set(values)):
        raise ValueError(f"{missing[0]} is missing")
    return cls(**{name: _value(name, hints[name], value) for name, value in values.items()})


def _value(name: str, hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return _read(hint, value)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{name} is {value!r}, not a list")
        return tuple(_value(name, get_args(hint)[0], item) for item in value)
    if get_origin(hint) is types.UnionType:
        return None if value is None else _value(name, get_args(hint)[0], value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise TypeError(f"{name} is {value!r}, not of type {hint.__name__}")
    return value

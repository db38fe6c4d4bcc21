"""Reading `config.json` of a draft head without PyTorch: what settings have to know of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SECTION = "outrider_head"
CONFIG = "config.json"
_WHERE_FROM = "give the directory of a draft head (`outrider train` makes one)"


class BadHead(ValueError):
    """The directory holds no such head, or one that does not fit the target; one line that names the fix."""


def read_section(directory: Path | str, kind: str | None = None) -> dict[str, Any]:
    """What `config.json` says of the head; `kind`: the sort that is wanted. Raises `BadHead`."""
    path = Path(directory).expanduser() / CONFIG
    try:
        section = json.loads(path.read_text())[SECTION]
    except OSError as error:
        raise BadHead(f"{directory} has no {CONFIG}: {_WHERE_FROM}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadHead(f"{path} describes no draft head: {_WHERE_FROM}") from error
    if not isinstance(section, dict):
        raise BadHead(f"{path} describes no draft head: {_WHERE_FROM}")
    if kind is not None and section.get("kind") != kind:
        own = section.get("kind")
        raise BadHead(f"{directory} holds a head of kind {own!r}, not {kind!r}: set drafter.kind to that")
    return section


def read_feature_layers(directory: Path | str, kind: str) -> tuple[int, ...]:
    """After which of the target's layers the head reads the residual stream. Raises `BadHead`."""
    section = read_section(directory, kind)
    layers, last = section.get("feature_layers"), section.get("num_target_layers")
    if not isinstance(layers, list) or not layers or not all(type(layer) is int for layer in layers):
        raise BadHead(f"{directory}: feature_layers in its {CONFIG} is no list of layers: copy or train the head again")
    if layers != sorted(set(layers)) or layers[0] < 1 or (type(last) is int and layers[-1] > last):
        raise BadHead(
            f"{directory}: feature_layers {layers} in its {CONFIG} must ascend between 1 and {last}: copy or train the "
            "head again"
        )
    return tuple(layers)


def read_feature_window(directory: Path | str, kind: str) -> int:
    """Positions before the newest token whose features the head reads; 0: all. Raises `BadHead`."""
    window = 1 if kind == "medusa" else read_section(directory, kind).get("window", 0)
    return window if type(window) is int else 0


def read_longest_draft(directory: Path | str, kind: str) -> int | None:
    """Tokens that the head drafts at most; None: as many as one likes. Raises `BadHead`."""
    section = read_section(directory, kind)
    heads, block = section.get("num_heads"), section.get("block_size")
    if kind == "medusa" and type(heads) is int:
        return heads
    return block - 1 if kind == "block" and type(block) is int else None

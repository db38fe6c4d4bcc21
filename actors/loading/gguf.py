"""GGUF files: converted once into an ordinary fp32 checkpoint in the local cache, and loaded from there in seconds.

transformers needs seconds to minutes to read a GGUF file (vocabulary and weights), and would do so in every rank,
drafter and tokenizer. The cache is `OUTRIDER_CACHE`, default `~/.cache/outrider`. It costs four bytes a weight: the
values of GGUF's blocks (scale times integer plus minimum) need fp32 to stay what they are.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import util
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from actors.loading.errors import ModelNotFound, UnsupportedModel, first_line
from actors.loading.support import check_supported

CONVERSION = "v1"  # part of every converted directory's name: change it when the conversion changes
_SAMPLE_BYTES = 1 << 20
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def cache_dir() -> Path:
    """Where converted models are kept."""
    return Path(os.environ.get("OUTRIDER_CACHE") or "~/.cache/outrider").expanduser()


def gguf_file(path: Path) -> Path | None:
    """The GGUF file that `path` is, or that lies in the directory `path`; None if there is none.

    Raises ModelNotFound when the directory holds several.
    """
    if path.is_file():
        return path if path.suffix.lower() == ".gguf" else None
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == ".gguf")
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ModelNotFound(f"{path} holds several GGUF files ({names}): name one of them")
    return files[0] if files else None


def converted(gguf: Path, directory: Path | None = None, title: str | None = None) -> Path:
    """The checkpoint of `gguf`, written at the first call (shown on stderr as `title`).

    Safe when several processes call it at once: one converts, the others wait for it. `directory` (default: one
    in the cache whose name follows from the file's content) is written whole or not at all.

    Raises:
        ModelNotFound: the file is damaged, or one of several parts.
        UnsupportedModel: an architecture or block type that cannot be read, or a package is missing.
    """
    if directory is None:
        directory = cache_dir() / _directory_name(gguf)
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{directory}.lock"):
        if not directory.is_dir():  # another process may have made it while this one waited
            _convert(gguf, directory, title or gguf.name)
    return directory


def _directory_name(gguf: Path) -> str:
    """Name of the file plus a fingerprint: its size, time of change, and both ends (header and last tensors).

    Reading all of a file of many GB at every start would cost more than it is worth.
    """
    state = gguf.stat()
    digest = hashlib.blake2b(f"{state.st_size} {state.st_mtime_ns} ".encode(), digest_size=8)
    with gguf.open("rb") as file:
        digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(state.st_size - _SAMPLE_BYTES, 0))
        digest.update(file.read(_SAMPLE_BYTES))
    stem = re.sub(r"[^a-z0-9]+", "-", gguf.stem.lower()).strip("-")
    return f"{stem}-{digest.hexdigest()}-fp32-{CONVERSION}"


def _convert(gguf: Path, directory: Path, title: str) -> None:
    """Write the checkpoint of `gguf` to `directory`, all or nothing."""
    if _SPLIT.search(gguf.name):
        raise ModelNotFound(f"{gguf} is one of several parts: join them with llama-gguf-split --merge")
    missing = [name for name in ("gguf", "accelerate") if util.find_spec(name) is None]
    if missing:
        raise UnsupportedModel(f"converting {gguf} needs: pip install {' '.join(missing)}")
    for left in directory.parent.glob(f"{directory.name}.*"):  # of a process that was killed: the lock is ours
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
    try:
        _write_checkpoint(gguf, temporary, title)
        temporary.chmod(0o755)
        for file in temporary.iterdir():
            file.chmod(0o644)
        os.replace(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_checkpoint(gguf: Path, directory: Path, title: str) -> None:
    """Tokenizer, configuration and fp32 weights of `gguf` as a checkpoint without quantisation marks."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from actors.loading.plain import assemble

    with _progress(f"{title}, first use", 3) as progress, _quiet_transformers():
        with _readable(gguf):
            source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
            check_supported(AutoConfig.from_pretrained(**source))
            progress("reading the tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(**source)
            progress("de-quantising the weights")
            loaded = AutoModelForCausalLM.from_pretrained(
                **source, dtype=torch.float32, device_map={"": "cpu"}, quantization_config=GgufConfig(dequantize=True)
            )
        plain = assemble(str(gguf), loaded.config, loaded.state_dict(), torch.float32)
        plain.generation_config = loaded.generation_config
        progress("saving the checkpoint")
        num_bytes = sum(parameter.numel() * parameter.element_size() for parameter in plain.parameters())
        free = shutil.disk_usage(directory).free
        if free < num_bytes:
            raise UnsupportedModel(
                f"converting {gguf} needs {num_bytes >> 20} MiB in {directory.parent}, where {free >> 20} MiB are free:"
                " make room, or set OUTRIDER_CACHE"
            )
        tokenizer.save_pretrained(directory)
        plain.save_pretrained(directory)


@contextmanager
def _readable(gguf: Path) -> Iterator[None]:
    """One line for a file that transformers cannot read."""
    try:
        yield
    except (UnsupportedModel, ModelNotFound):
        raise
    except Exception as error:  # readers and the tokenizer library raise whatever a damaged file makes them meet
        raise UnsupportedModel(f"{gguf} cannot be read: {first_line(error)}") from error


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
    console = Console(file=sys.stderr, color_system=None if os.environ.get("NO_COLOR") else "auto")
    with Progress(*columns, console=console) as progress:
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

"""Compiling the kernels: once per machine and source, kept in the local cache."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from filelock import FileLock

from actors.loading.builtin import cache_dir

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "src"
# No contraction and no reassociation: the order of operations is what the sources say, on every machine.
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fopenmp", "-fPIC", "-shared", "-w")


class KernelBuildError(RuntimeError):
    """The kernels cannot be compiled here; one line that names the fix."""


def built_library(extra_flags: tuple[str, ...] = ()) -> Path:
    """The compiled library, made at the first call (about 10 s).

    `extra_flags` come last and override, e.g. `-march=haswell`. Safe when several processes call it at once.

    Raises:
        KernelBuildError: there is no C compiler, or it fails.
    """
    compiler = shlex.split(os.environ.get("CC", "")) or ["gcc"]
    if shutil.which(compiler[0]) is None:
        raise KernelBuildError(
            f"no C compiler ({compiler[0]}) to build the CPU kernels with: install gcc, or set kernels: portable"
        )
    flags = (*FLAGS, *extra_flags)
    path = cache_dir() / "kernels" / f"outrider-{_digest(compiler, flags)}.so"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not path.is_file():  # another process may have made it while this one waited
            _compile(compiler, flags, path)
    return path


def _compile(compiler: list[str], flags: tuple[str, ...], path: Path) -> None:
    log.info("compiling the CPU kernels, once for this machine (about 10 s)")
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".so")
    os.close(handle)
    try:
        command = [*compiler, *flags, *(str(s) for s in sorted(SOURCES.glob("*.c"))), "-o", temporary, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error" in line), "it gave no reason")
            raise KernelBuildError(
                f"{compiler[0]} cannot build the CPU kernels ({first.strip()}): set CC to a recent gcc, or set "
                "kernels: portable"
            )
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _digest(compiler: list[str], flags: tuple[str, ...]) -> str:
    """Of everything the result depends on: sources, flags, the compiler's version, the processor."""
    state = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        state.update(source.name.encode() + source.read_bytes())
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout
    state.update(repr((flags, version, platform.machine(), _processor())).encode())
    return state.hexdigest()[:16]


def _processor() -> str:
    """What `-march=native` looks at, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    kept = ("flags", "Features", "model name", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kept)}))

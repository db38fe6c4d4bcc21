"""What all commands share: consoles, and turning mistakes into one clear line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NoReturn

import grpc
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cluster.client.attempts import CallFailed
from cluster.config_load import ConfigError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130  # the shell's code for a process ended by Ctrl-C

# With NO_COLOR not even bold: rich by itself would leave that in.
_COLOURS: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"

stdout = Console(highlight=False, soft_wrap=True, color_system=_COLOURS)
stderr = Console(stderr=True, highlight=False, soft_wrap=True, color_system=_COLOURS)


class CommandError(Exception):
    """A mistake or failure that one sentence explains; the sentence names the fix."""


def fail(message: str) -> NoReturn:
    """Print `error: message` and end the command with a failure code."""
    stderr.print(f"[bold red]error:[/] {escape(message)}")
    raise typer.Exit(EXIT_FAILED)


def progress(console: Console) -> Progress:
    """A bar that leaves no trace on the screen when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


@contextmanager
def guard() -> Iterator[None]:
    """Mistakes known to have one clear line end the command with it; anything else keeps its traceback."""
    try:
        yield
    except KeyboardInterrupt:
        stderr.print("interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except ConfigError as error:
        fail("; ".join(error.lines))
    except CommandError as error:
        fail(str(error))
    except grpc.RpcError as error:
        fail(describe(error))
    except CallFailed as error:
        fail(_sentence(error.code, error.details))


def describe(error: grpc.RpcError) -> str:
    """One sentence for a failed call: what the server said, or how to reach one."""
    if not isinstance(error, grpc.Call):
        return str(error)
    return _sentence(error.code(), " ".join((error.details() or "no details").split()))


def _sentence(code: grpc.StatusCode, details: str) -> str:
    if code is grpc.StatusCode.UNAVAILABLE and "connect" in details.lower():
        return "no server answers there; start one (`outrider serve smollm2`) or name it with --address"
    if code is grpc.StatusCode.UNAVAILABLE and "resolving" in details:
        return "the host's name is not known; check --address"
    return f"{code.name.lower().replace('_', ' ')}: {details}"

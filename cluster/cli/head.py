"""Starting a Ray of one's own: what Ray does not do at the first try is said, and tried again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from cluster.cli import processes
from cluster.cli.output import CommandError

ATTEMPTS = 3  # a start of Ray 2.60 may hang until its 30 s are over (seen: 3 of some 260), on an idle machine too
LAST_LINES = 12
LOGS = ("gcs_server.out", "gcs_server.err", "raylet.out", "raylet.err")

logger = logging.getLogger(__name__)


def start(init: Callable[[], object], shutdown: Callable[[], object], temp_dir: str) -> None:
    """Call `init`, which starts Ray with its files in `temp_dir`, up to `ATTEMPTS` times.

    What a failed attempt left is ended before the next, and its last log lines are logged. Raises `CommandError` when
    the last attempt fails, and whatever `init` raises besides `RuntimeError` and plain `Exception`, which are Ray's
    for a process that did not start. `init` must refuse with another error where a Ray runs already: a failed attempt
    would end it.
    """
    for attempt in range(1, ATTEMPTS + 1):
        ours = {process.pid for process in processes.descendants()}
        try:
            init()
            return
        except Exception as error:
            if type(error) not in (Exception, RuntimeError):
                raise
            reason = " ".join(str(error).split())[:300]
            logger.warning(
                "Ray did not start (attempt %d of %d): %s\n%s", attempt, ATTEMPTS, reason, last_lines(Path(temp_dir))
            )
            shutdown()
            left = [process for process in processes.descendants() if process.pid not in ours]
            processes.end([*left, *processes.mentioning(temp_dir)])
    raise CommandError(f"Ray did not start in {ATTEMPTS} attempts; the last said: {reason}")


def last_lines(temp_dir: Path) -> str:
    """The ends of the logs of the processes that make a node, of the latest attempt."""
    logs = temp_dir / "session_latest" / "logs"
    parts = []
    for name in LOGS:
        file = logs / name
        if file.is_file() and (lines := file.read_text(encoding="utf-8", errors="replace").splitlines()):
            parts.append("\n".join([f"{name}:", *(f"  {line}" for line in lines[-LAST_LINES:])]))
    return "\n".join(parts) or "no logs were written"

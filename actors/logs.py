"""The log of a process: one line per record on stderr, as text or JSON, each with the request that it belongs to.

Records carry identities, counts and times, never a prompt, a completion or token ids.
"""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

from actors.watch import WatchSpec

PACKAGES = ("cluster", "actors")  # whose loggers are ours; those of others stay as they are
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)  # of what this task works for
# What every record has: the rest came as `extra`.
_USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "skip_context_filter"}


class RequestIds(logging.Filter):
    """Gives each record the request of its task, unless it names one itself."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps every record."""
        found = request_id.get()
        if found is not None and not hasattr(record, "request_id"):
            record.request_id = found
        return True


class JsonLines(logging.Formatter):
    """One JSON object per record."""

    def __init__(self, process: dict[str, str]) -> None:
        """`process`: what all lines of this process say."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """`time` (UTC), `level`, `logger`, `message`, the process, whatever came as `extra`, `exception`."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname, "logger": record.name, "message": record.getMessage(), **self._process,
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextLines(logging.Formatter):
    """One readable line per record, with what came as `extra` at its end."""

    def __init__(self, process: dict[str, str]) -> None:
        super().__init__("%(levelname)s %(asctime)s %(name)s " + " ".join(process.values()) + ": %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line before a traceback."""
        extra = " ".join(f"{key}={value}" for key, value in _extra(record).items())
        return super().formatMessage(record) + (f" [{extra}]" if extra else "")


def configure(spec: WatchSpec, **process: str) -> None:
    """Log as `spec` says; `process` names this one in every line, e.g. component="draft". Idempotent.

    The root logger of a Ray worker has no handler, so nothing appears twice.
    """
    formatter = JsonLines(process) if spec.log_format == "json" else TextLines(process)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(RequestIds())
    for name in PACKAGES:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(spec.log_level)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    """What a caller added; Ray adds names of its own, which begin with a line."""
    return {
        key: value for key, value in record.__dict__.items()
        if key not in _USUAL and key[0] != "_" and value is not None
    }

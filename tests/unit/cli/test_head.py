"""A Ray that does not start at once is tried again, and what it left behind is ended first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cluster.cli import head
from cluster.cli.output import CommandError


class Starts:
    """Fails `times` times with `error`, each time leaving a process that mentions `folder`."""

    def __init__(self, times: int, error: Exception, folder: Path) -> None:
        self.calls = self.shutdowns = 0
        self.left: list[subprocess.Popen[bytes]] = []
        self._times, self._error, self._folder = times, error, folder

    def init(self) -> None:
        self.calls += 1
        if self.calls <= self._times:
            self.left.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(self._folder)]))
            raise self._error

    def shutdown(self) -> None:
        self.shutdowns += 1


@pytest.mark.parametrize("error", [RuntimeError("Timed out waiting for file"), Exception("The current node timed out")])
def test_a_start_that_timed_out_is_tried_again_and_its_processes_are_ended_and_its_logs_told(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = tmp_path / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("".join(f"line {number}\n" for number in range(100)))
    starts = Starts(1, error, tmp_path)
    head.start(starts.init, starts.shutdown, str(tmp_path))
    assert (starts.calls, starts.shutdowns) == (2, 1)
    assert not any(psutil.pid_exists(process.pid) for process in starts.left)
    assert "attempt 1 of 3" in caplog.text and str(error) in caplog.text
    assert "line 99" in caplog.text and "line 80" not in caplog.text


def test_a_ray_that_never_starts_is_one_line_with_its_reason(tmp_path: Path) -> None:
    starts = Starts(head.ATTEMPTS, RuntimeError("no\nGCS"), tmp_path)
    with pytest.raises(CommandError, match=r"did not start in 3 attempts; the last said: no GCS"):
        head.start(starts.init, starts.shutdown, str(tmp_path))
    assert starts.calls == head.ATTEMPTS


def test_a_mistake_is_not_tried_again(tmp_path: Path) -> None:
    starts = Starts(head.ATTEMPTS, ValueError("a wrong option"), tmp_path)
    with pytest.raises(ValueError, match="a wrong option"):
        head.start(starts.init, starts.shutdown, str(tmp_path))
    assert starts.calls == 1

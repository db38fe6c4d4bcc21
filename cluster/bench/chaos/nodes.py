"""A second node of the local Ray: a raylet of its own, which can die with everything on it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import ray

from cluster.cli.local import LOOPBACK

JOIN_S = 60.0


class Node:
    """A raylet that joins the Ray this process is connected to."""

    def __init__(self, num_cpus: int, resources: Mapping[str, float], store_bytes: int) -> None:
        self._command = [
            str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats",
            f"--address={ray.get_runtime_context().gcs_address}", f"--node-ip-address={LOOPBACK}",
            f"--num-cpus={num_cpus}", f"--resources={json.dumps(dict(resources))}",
            f"--object-store-memory={store_bytes}",
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Join; returns when Ray counts it. Raises TimeoutError."""
        before = alive_nodes()
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        end_s = time.monotonic() + JOIN_S
        while not alive_nodes() - before:  # their number tells nothing: the former one may be taken for dead only now
            if time.monotonic() > end_s or self._process.poll() is not None:
                raise TimeoutError(f"the second node has not joined within {JOIN_S:g} s")
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL to the raylet; Ray's workers end when theirs has."""
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                if process.name() == "raylet":
                    os.kill(process.pid, signal.SIGKILL)
        self.wait_gone()

    def wait_gone(self) -> None:
        """Until Ray knows, and the processes have ended."""
        if self._process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(15.0)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def end(self) -> None:
        """Leave in order."""
        if self._process is not None:
            tree = self._tree()
            self._process.terminate()
            self.wait_gone()
            for process in tree:
                with contextlib.suppress(psutil.Error):
                    process.kill()

    def _tree(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        try:
            return list(psutil.Process(self._process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []


def alive_nodes() -> frozenset[str]:
    """Ids of the nodes that Ray takes for alive."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's own
    return frozenset(node["NodeID"] for node in nodes if node["Alive"])

"""Several processes of this very command on one machine; on several machines, torchrun or deepspeed start them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from cluster.cli.local import LOOPBACK, free_ports
from cluster.cli.output import CommandError

_POLL_S = 0.2
_GRACE_S = 30.0


def ranks_of_launcher() -> int:
    """How many processes somebody started already; 1: this one alone."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launch(count: int, device: str) -> None:
    """Run the command again in `count` processes and wait for them. Raises `CommandError` when one fails."""
    if device.startswith("cuda"):
        import torch

        if torch.cuda.device_count() < count:
            raise CommandError(f"--num-gpus {count}: this machine has {torch.cuda.device_count()}")
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_ports(1)[0])}
    bin_dir = os.path.dirname(sys.executable)  # ninja, which compiles DeepSpeed's collectives
    common["PATH"] = os.pathsep.join([bin_dir, os.environ.get("PATH", "")])
    if device == "cpu":
        common["DS_ACCELERATOR"] = "cpu"
        common["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // count))
    command = [sys.executable, "-c", "from cluster.cli.main import app; app()", *sys.argv[1:]]
    ranks = [
        subprocess.Popen(command, env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(count)
    ]
    try:
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):  # the others would wait for it in a collective
                break
            time.sleep(_POLL_S)
    finally:
        _end(ranks)
    failed = [number for number, rank in enumerate(ranks) if rank.returncode]
    if failed:
        raise CommandError(f"process {failed[0]} of {count} failed (see above)")


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Ask those that still run to end, then make them."""
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    until_s = time.monotonic() + _GRACE_S
    for rank in ranks:
        try:
            rank.wait(timeout=max(0.1, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()

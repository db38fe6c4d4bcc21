"""Several processes share a run by DeepSpeed ZeRO, from the same command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.training.target import Target

_COMMAND = [sys.executable, "-c", "from cluster.cli.main import app; app()", "train", "draft"]


def _train(target: Target, corpus: Path, out: Path, stage: int, steps: int) -> subprocess.CompletedProcess[str]:
    options = {
        "target": target.name, "data": corpus, "device": "cpu", "num-gpus": 2, "zero": stage, "num-steps": steps,
        "layers": 1, "draft-vocab": 130, "batch-tokens": 200, "lr": 5e-3, "checkpoint-every": 4, "threads": 1,
    }  # fmt: skip
    given = [word for name, value in options.items() for word in (f"--{name}", f"{value}")]
    root = Path(__file__).parents[3]
    return subprocess.run(
        [*_COMMAND, str(out), *given], capture_output=True, text=True, timeout=600, check=False, cwd=root,
        env={**os.environ, "COLUMNS": "160"},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_two_processes_train_one_draft(target: Target, corpus: Path, tmp_path: Path, stage: int) -> None:
    done = _train(target, corpus, tmp_path, stage, 12)
    assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads((tmp_path / "training.json").read_text())
    assert facts["settings"]["num ranks"] == 2 and facts["num_steps"] == 12
    assert facts["trained"]["sampled"]["mat"] > facts["untrained"]["sampled"]["mat"]
    again = _train(target, corpus, tmp_path, stage, 12)  # from its checkpoint: nothing is left to do
    assert again.returncode == 0, again.stderr[-2000:]
    assert json.loads((tmp_path / "training.json").read_text())["trained"] == facts["trained"]

"""The kernels compile to machine code for devices that are not here, within what those devices have."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install 'outrider[gpu]'")

SHARED_BYTES = 99 << 10  # the smallest limit among devices since Ampere (A10, L4, RTX)


def test_every_variant_compiles_within_shared_memory_and_registers() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.unit.engine.gpu.compile_ahead"], capture_output=True, text=True, env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    compiled = [json.loads(line) for line in run.stdout.splitlines()]
    assert {c["architecture"] for c in compiled} == {80, 90}
    for c in compiled:
        assert c["shared_bytes"] <= SHARED_BYTES and c["spilled_bytes"] <= 512, c
        assert (c["tensor_cores"] > 0) == c["name"].startswith(("attend", "linear")), c

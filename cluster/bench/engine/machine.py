"""What this machine can do at best: bytes it reads and operations it does per second.

Both are the best of several kernels and repeats: a floor that is too high would flatter the engine.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from actors.engine.native.large_pages import LargePages

DEFAULT_L3_BYTES = 64 * 2**20  # where the system does not say
MATMUL_SIZE = 2048
GPU_MATMUL_SIZE = 8192


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured limits of the device with the given number of threads."""

    read_bytes_per_s: float
    operations_per_s: Mapping[str, float]  # by arithmetic: fp32, bf16, int8; two operations per multiply-add

    def as_json(self) -> dict[str, object]:
        """In the units people compare."""
        return {
            "read_gb_per_s": round(self.read_bytes_per_s / 1e9, 2),
            "giga_operations_per_s": {name: round(rate / 1e9, 1) for name, rate in self.operations_per_s.items()},
        }


class Meter:
    """Reads a buffer far bigger than the last-level cache, and multiplies matrices; keeps the best of all samples.

    A machine that others use as well is never wholly ours: samples are to be taken throughout a bench. PyTorch's
    threads are used as they are set.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        if device == "cpu":  # in pages as the engine's weights: the floor is what they could be read at
            buffer = LargePages().zeros((_buffer_bytes(device) // 4,), torch.float32).fill_(1.0)
        else:
            buffer = torch.ones(_buffer_bytes(device) // 4, dtype=torch.float32, device=device)
        matrix, vector = buffer.view(-1, 4096), torch.ones(4096, device=device)
        self._num_bytes = buffer.numel() * 4
        self._reads: list[Callable[[], object]] = [
            buffer.sum, buffer.amax, lambda: torch.linalg.vector_norm(buffer), lambda: torch.mv(matrix, vector),
        ]
        self._size = MATMUL_SIZE if device == "cpu" else GPU_MATMUL_SIZE
        self._products = _products(self._size, device)
        self._read_s = float("inf")
        self._product_s = dict.fromkeys(self._products, float("inf"))

    def sample(self) -> float:
        """Run everything once; seconds of all of it."""
        began = time.perf_counter()
        self._read_s = min(self._read_s, *(self._seconds(read) for read in self._reads))
        for name, product in self._products.items():
            self._product_s[name] = min(self._product_s[name], self._seconds(product))
        return time.perf_counter() - began

    @property
    def rates(self) -> Rates:
        """The best so far."""
        operations = 2.0 * self._size**3
        return Rates(
            self._num_bytes / self._read_s, {name: operations / best for name, best in self._product_s.items()}
        )

    def _seconds(self, run: Callable[[], object]) -> float:
        synchronize(self._device)
        started = time.perf_counter()
        run()
        synchronize(self._device)
        return time.perf_counter() - started


def _products(size: int, device: str) -> dict[str, Callable[[], object]]:
    found: dict[str, Callable[[], object]] = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
        found[name] = lambda a=a, b=b: torch.nn.functional.linear(a, b)  # type: ignore[misc]
    rows, columns = (torch.ones(size, size, dtype=torch.int8, device=device) for _ in range(2))
    found["int8"] = lambda: torch._int_mm(rows, columns.t())
    return found


def synchronize(device: str) -> None:
    """Wait for the device's queue; the CPU has none."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def describe(device: str) -> dict[str, object]:
    """The machine as the report names it."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else _cpu_name()
    return {
        "device": device, "name": name, "num_cores": os.cpu_count(), "num_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _buffer_bytes(device: str) -> int:
    if device.startswith("cuda"):
        return 4 * 2**30
    return max(2**29, 8 * _l3_bytes())


def _l3_bytes() -> int:
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
    except OSError:
        return DEFAULT_L3_BYTES
    return int(text[:-1]) * {"K": 2**10, "M": 2**20}[text[-1]] if text[-1] in "KM" else int(text)

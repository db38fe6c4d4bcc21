"""Keeping a process on some of its machine's CPU cores."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence


def stay_on(cores: Sequence[int]) -> None:
    """Keep all threads of this process, and those that they will start, on `cores`; none named: leave them alone.

    Raises `ValueError` where a platform has no such thing, or a core is not to be had.
    """
    if not cores:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError("`cores` keeps a tier on CPU cores, which this platform cannot do: remove it")
    there = os.sched_getaffinity(0)
    missing = sorted(set(cores) - there)
    if missing:
        raise ValueError(f"cores {missing} are not to be had here: this process may use {sorted(there)}")
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.sched_setaffinity(int(thread), cores)

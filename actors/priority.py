"""Threads that compute step back, so that the threads that carry calls run as soon as they have something to do.

Where a machine's cores are all at work on passes, a wake-up of an equal would wait for the end of a time slice, several
times a round. Work that takes microseconds must not wait for work that takes milliseconds.
"""

from __future__ import annotations

import os
import threading

_STEP_BACK = 10  # in the kernel's nice values: about a tenth of the others' share while they want it


def step_back() -> None:
    """Lower this thread's priority, and that of the threads it starts from now on; harmless where not allowed."""
    thread = threading.get_native_id()
    try:
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + _STEP_BACK))
    except OSError:  # the machine's owner does not allow it; then the kernel's own order has to do
        return

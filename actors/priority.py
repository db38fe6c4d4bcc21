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
    _set(thread, _lower(os.getpriority(os.PRIO_PROCESS, thread)))


class Aside:
    """Steps back while it is entered, and comes forward again where the system allows that; else steps back for good.

    What a thread does between two passes it does for the threads that carry calls: they wait for it, and for Python's
    lock, which it may hold when the kernel gives its core to a pass of another process. For the thread that makes it.
    """

    def __init__(self) -> None:
        self._thread = threading.get_native_id()
        self._usual = os.getpriority(os.PRIO_PROCESS, self._thread)
        self._back = _lower(self._usual)
        _set(self._thread, self._back)
        self._comes_forward = _set(self._thread, self._usual)  # asks for a privilege (CAP_SYS_NICE, RLIMIT_NICE)

    def __enter__(self) -> None:
        if self._comes_forward:
            _set(self._thread, self._back)

    def __exit__(self, *exception: object) -> None:
        if self._comes_forward:
            _set(self._thread, self._usual)


def _lower(priority: int) -> int:
    return min(19, priority + _STEP_BACK)


def _set(thread: int, priority: int) -> bool:
    """Whether the machine's owner allows it; if not, the kernel's own order has to do."""
    try:
        os.setpriority(os.PRIO_PROCESS, thread, priority)
    except OSError:
        return False
    return True

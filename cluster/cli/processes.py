"""Making sure that no process outlives a command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

import psutil

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def descendants() -> list[psutil.Process]:
    """All processes below this one, now. Take it *before* a shutdown: orphans lose their parent."""
    return list(psutil.Process().children(recursive=True))


def mentioning(text: str) -> list[psutil.Process]:
    """Processes of any parent whose command line holds `text` (a temporary directory's unique name)."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.pid != psutil.Process().pid and any(text in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue  # gone meanwhile, or not ours to read
    return found


def end(processes: Iterable[psutil.Process], grace_s: float = 5.0) -> int:
    """Ask the processes to end, kill those that have not after `grace_s`; returns how many were alive.

    A `psutil.Process` remembers its creation time, so a reused process id is never hit.
    """
    alive = [process for process in processes if process.is_running()]
    for step in (psutil.Process.terminate, psutil.Process.kill):
        for process in alive:
            try:
                step(process)
            except psutil.NoSuchProcess:
                continue
        _, remaining = psutil.wait_procs(alive, timeout=grace_s)
        if not remaining:
            break
        alive = remaining
    return len(alive)


def bounded(action: Callable[[], None], timeout_s: float) -> bool:
    """Run `action` for at most `timeout_s`; False when it did not return, or failed, in time."""
    done = threading.Event()

    def work() -> None:
        action()
        done.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return done.is_set()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def catch_interrupts() -> None:
    """From now on Ctrl-C and SIGTERM raise `KeyboardInterrupt`. Again after libraries that set handlers."""
    for number in SIGNALS:
        signal.signal(number, _interrupt)


def ignore_interrupts() -> None:
    """From now on Ctrl-C and SIGTERM do nothing: a shutdown must not be cut short."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def interruptible() -> Iterator[None]:
    """`catch_interrupts` inside, the former handlers afterwards."""
    former = {number: signal.getsignal(number) for number in SIGNALS}
    catch_interrupts()
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)

"""The future of a call, as `concurrent.futures` has it, made for being made and resolved between two passes.

Then the caches are cold, and the standard one's lock, condition and bookkeeping, of which every future has its own,
cost a tenth of a millisecond: as much as telling the answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any, TypeVar

Value = TypeVar("Value")

log = logging.getLogger(__name__)

_PENDING, _RUNNING, _CANCELLED, _RESOLVED = range(4)
_OVER = (_CANCELLED, _RESOLVED)

_lock = threading.Lock()  # of all: held for what two threads may do to one of them at once


class Answer(Future[Value]):
    """A future for one thread that resolves it and any number that wait or ask.

    Not for `concurrent.futures.wait` and `as_completed`, which look inside.
    """

    def __init__(self) -> None:
        # Not the parent's, whose lock and lists these stand for.
        self._stage = _PENDING
        self._value: Value | None = None
        self._error: BaseException | None = None
        self._calls: list[Callable[[Future[Value]], object]] = []  # each is taken out by whoever runs it
        self._news: threading.Event | None = None  # somebody waits

    def __repr__(self) -> str:
        return f"<Answer {('pending', 'running', 'cancelled', 'resolved')[self._stage]}>"

    def cancel(self) -> bool:
        """Whether nobody has begun with it, so that nobody will."""
        with _lock:
            if self._stage in (_RUNNING, _RESOLVED):
                return False
            is_news = self._stage == _PENDING
            self._stage = _CANCELLED
        if is_news:
            self._tell()
        return True

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._stage == _CANCELLED

    def running(self) -> bool:
        """Whether somebody is at it."""
        return self._stage == _RUNNING

    def done(self) -> bool:
        """Whether it is resolved or cancelled."""
        return self._stage in _OVER

    def set_running_or_notify_cancel(self) -> bool:
        """Begin with it; False: it was cancelled. Raises `InvalidStateError` where somebody has begun already."""
        with _lock:
            if self._stage == _CANCELLED:
                return False
            if self._stage != _PENDING:
                raise InvalidStateError(f"{self!r} has been begun with")
            self._stage = _RUNNING
        return True

    def set_result(self, result: Value) -> None:
        """Resolve it. Raises `InvalidStateError` if it is over."""
        if self._stage in _OVER:
            raise InvalidStateError(f"{self!r} is over")
        self._value = result
        self._stage = _RESOLVED
        self._tell()

    def set_exception(self, exception: BaseException | None) -> None:
        """Resolve it. Raises `InvalidStateError` if it is over."""
        if self._stage in _OVER:
            raise InvalidStateError(f"{self!r} is over")
        self._error = exception
        self._stage = _RESOLVED
        self._tell()

    def result(self, timeout: float | None = None) -> Value:
        """What it was resolved with. Raises that, `CancelledError`, or `TimeoutError` after `timeout` seconds."""
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error  # no cycle through this frame
        return self._value  # type: ignore[return-value]  # resolved

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What it failed with. Raises `CancelledError`, or `TimeoutError` after `timeout` seconds."""
        if self._stage not in _OVER:
            self._wait(timeout)
        if self._stage == _CANCELLED:
            raise CancelledError
        return self._error

    def add_done_callback(self, fn: Callable[[Future[Value]], Any]) -> None:
        """Have `fn` called when it is over, in the order of adding; at once if it is."""
        self._calls.append(fn)
        if self._stage in _OVER:
            self._run_calls()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()
        self._run_calls()

    def _run_calls(self) -> None:
        while self._calls:
            try:
                call = self._calls.pop(0)
            except IndexError:  # another thread had the last one
                return
            try:
                call(self)
            except Exception:  # of whoever asked to be called
                log.exception("a callback of a call's answer failed")

    def _wait(self, timeout: float | None) -> None:
        with _lock:
            news = self._news = self._news or threading.Event()
        # Whoever resolves it looks for `_news` after the stage is set, so one of the two sees the other.
        if self._stage not in _OVER and not news.wait(timeout):
            raise TimeoutError

"""Calls that need several answers of the engines in one process, written as generators and run without a thread.

A generator yields what it waits for and is resumed with the answer, in the thread that gave it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from actors.answer import Answer

Value = TypeVar("Value")


class Baton:
    """Goes on with what a worker has answered, once the step that answered it has ended.

    Gone on with one by one, sequences that were computed together would come apart, and each would be a step of its
    own in the next engine (as on the wire: `actors.wire.server`).
    """

    def __init__(self, between_steps: Callable[[Callable[[], None]], None]) -> None:
        self._between_steps = between_steps
        self._waiting: deque[Callable[[], None]] = deque()
        self._called = False

    def when_done(self, future: Future[Any], act: Callable[[], None]) -> None:
        """Run `act`, which must not raise, after `future` is resolved."""
        future.add_done_callback(lambda _: self._take(act))

    def _take(self, act: Callable[[], None]) -> None:
        self._waiting.append(act)
        if not self._called:
            self._called = True
            self._between_steps(self._go_on)

    def _go_on(self) -> None:
        self._called = False  # before the queue is read: what comes from here on calls again
        while self._waiting:
            try:
                act = self._waiting.popleft()
            except IndexError:  # another thread had the last one
                return
            act()


Steps = Generator[tuple[Future[Any], Baton], Any, Value]  # yields what it waits for, and whose answer that is


def run(steps: Steps[Value]) -> Future[Value]:
    """Run `steps` as far as they go without waiting, and the rest as the answers come; holds what they return."""
    future: Answer[Value] = Answer()
    future.set_running_or_notify_cancel()  # whoever loses interest closes the sequence, or calls again
    _go_on(steps, future, None)
    return future


def _go_on(steps: Steps[Value], future: Future[Value], answered: Future[Any] | None) -> None:
    while True:
        try:
            if answered is None:
                waits_for, baton = next(steps)
            elif (error := answered.exception()) is not None:
                waits_for, baton = steps.throw(error)
            else:
                waits_for, baton = steps.send(answered.result())
        except StopIteration as end:
            future.set_result(end.value)
            return
        except Exception as error:  # the call's own failure goes to its caller
            future.set_exception(error)
            return
        if not waits_for.done():
            baton.when_done(waits_for, partial(_go_on, steps, future, waits_for))
            return
        answered = waits_for

"""Calls wait for their grammar to be compiled, so that no step of the engine does (one event loop only)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from actors.grammar.compiled import compile_aside, is_ready
from actors.grammar.grammar import Grammar

Act = Callable[[], Future[Any]]


class Gate:
    """Lets calls pass at once, but those whose grammar is new: they, and what comes after them for their sequence,
    pass in the order in which they came once it is compiled. One that cannot be compiled fails where it is used."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[Act, Future[Any]]]] = {}  # by sequence

    def pass_on(self, sequence_id: str, grammar: Grammar | None, act: Act) -> Future[Any]:
        """What `act` answers, when it may be run. `grammar`: of the call; None: it needs none."""
        queue = self._waiting.get(sequence_id)
        if queue is None and (grammar is None or is_ready(grammar)):
            return act()
        answer: Future[Any] = Future()
        if queue is None:
            assert grammar is not None
            queue = self._waiting[sequence_id] = deque()
            loop = asyncio.get_running_loop()
            compile_aside(grammar).add_done_callback(
                lambda done: (done.exception(), loop.call_soon_threadsafe(self._release, sequence_id))
            )
        queue.append((act, answer))
        return answer

    def _release(self, sequence_id: str) -> None:
        for act, answer in self._waiting.pop(sequence_id):
            try:
                act().add_done_callback(partial(_hand_on, answer))
            except Exception as error:  # as if the call had been refused at once
                answer.set_exception(error)


def _hand_on(answer: Future[Any], done: Future[Any]) -> None:
    error = done.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())

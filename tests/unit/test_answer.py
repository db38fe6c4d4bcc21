"""An answer behaves as the standard future does, whichever order things happen in."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.answer import Answer

ACTS: dict[str, Callable[[Future[Any]], Any]] = {
    "begin": lambda future: future.set_running_or_notify_cancel(),
    "resolve": lambda future: future.set_result(7),
    "fail": lambda future: future.set_exception(ValueError("no")),
    "cancel": lambda future: future.cancel(),
    "result": lambda future: future.result(0),
    "exception": lambda future: repr(future.exception(0)),
    "done": lambda future: (future.done(), future.running(), future.cancelled()),
}


def outcome(future: Future[Any], act: str, heard: list[str], place: int) -> Any:
    if act == "hear":
        return future.add_done_callback(lambda _: heard.append(f"{place}"))
    try:
        return ACTS[act](future)
    except (InvalidStateError, RuntimeError):  # the standard one raises either where something was begun twice
        return InvalidStateError
    except (CancelledError, TimeoutError, ValueError) as error:
        return type(error)


def begins_what_was_cancelled_twice(acts: list[str]) -> bool:
    """Only the standard one minds."""
    return "cancel" in acts and acts[acts.index("cancel") :].count("begin") > 1


@given(st.lists(st.sampled_from([*ACTS, "hear"]), max_size=9).filter(
    lambda acts: not begins_what_was_cancelled_twice(acts)
))
def test_every_order_of_acts_comes_to_what_it_comes_to_with_the_standard_future(acts: list[str]) -> None:
    logging.getLogger("concurrent.futures").setLevel(logging.CRITICAL + 1)  # it logs what it also raises
    futures: list[Future[Any]] = [Future(), Answer()]
    heard: list[list[str]] = [[], []]
    for place, act in enumerate(acts):
        expected, got = (outcome(f, act, h, place) for f, h in zip(futures, heard, strict=True))
        assert got == expected, (acts, place)
    assert heard[1] == heard[0]


def test_whoever_waits_is_woken_up_by_what_comes() -> None:
    answers: list[Answer[int]] = [Answer() for _ in range(50)]
    found: list[int] = []
    threads = [threading.Thread(target=lambda a=a: found.append(a.result(60))) for a in answers for _ in range(2)]
    for thread in threads:
        thread.start()
    for number, answer in enumerate(answers):
        answer.set_result(number)
    for thread in threads:
        thread.join(60)
    assert sorted(found) == sorted([*range(50), *range(50)])
    with pytest.raises(TimeoutError):
        Answer[int]().result(0.001)


def test_callbacks_that_are_added_while_it_is_resolved_are_called_once() -> None:
    for _ in range(300):
        answer: Answer[int] = Answer()
        calls: list[int] = []
        adding = threading.Thread(target=lambda a=answer, c=calls: [a.add_done_callback(lambda _: c.append(1))
                                                                    for _ in range(20)])
        adding.start()
        answer.set_result(1)
        adding.join()
        assert len(calls) == 20


def test_a_callback_that_raises_keeps_nobody_from_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    answer: Answer[int] = Answer()
    heard: list[int] = []
    answer.add_done_callback(lambda _: 1 / 0)
    answer.add_done_callback(lambda done: heard.append(done.result()))
    answer.set_result(3)
    assert heard == [3]
    assert "a callback of a call's answer failed" in caplog.text


def test_an_event_loop_waits_for_it_and_cancels_it() -> None:
    async def main() -> None:
        answer: Answer[int] = Answer()
        threading.Timer(0.01, answer.set_result, [5]).start()
        assert await asyncio.wrap_future(answer) == 5
        given_up: Answer[int] = Answer()
        waiting = asyncio.ensure_future(asyncio.wrap_future(given_up))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert given_up.cancelled() and not given_up.set_running_or_notify_cancel()

    asyncio.run(main())

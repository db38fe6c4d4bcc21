"""Calls keep their order while a grammar is compiled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from actors.grammar.compiled import masks_of
from actors.grammar.gate import Gate
from actors.grammar.grammar import Grammar, GrammarKind
from actors.grammar.vocabulary import know
from actors.wire.server import completed
from tests.grammars import EOS, PIECES, regex


def slow(name: str) -> tuple[Grammar, threading.Event]:
    """A grammar whose compilation waits for the event."""
    go = threading.Event()
    know(name, lambda: (go.wait(10), PIECES)[-1])
    return Grammar(GrammarKind.REGEX, "ab", (EOS,), name, ""), go


def noting(done: list[str], name: str) -> Callable[[], Future[Any]]:
    return lambda: (done.append(name), completed(name))[-1]


@pytest.mark.asyncio
async def test_calls_without_a_grammar_or_with_a_known_one_pass_at_once() -> None:
    gate, done = Gate(), []
    known = regex("ab")
    masks_of(known)
    assert gate.pass_on("s", None, noting(done, "none")).result() == "none"
    assert gate.pass_on("s", known, noting(done, "known")).result() == "known"
    assert done == ["none", "known"]


@pytest.mark.asyncio
async def test_what_follows_a_waiting_call_waits_with_it_and_other_sequences_do_not() -> None:
    gate, done = Gate(), []
    grammar, go = slow("gate: order")
    waiting = [
        gate.pass_on("s", grammar, noting(done, "propose")), gate.pass_on("s", grammar, noting(done, "enumerate")),
        gate.pass_on("s", None, noting(done, "close")),
    ]
    gate.pass_on("other", None, noting(done, "other"))
    await asyncio.sleep(0.02)
    assert done == ["other"]
    go.set()
    assert await asyncio.gather(*map(asyncio.wrap_future, waiting)) == ["propose", "enumerate", "close"]
    assert done == ["other", "propose", "enumerate", "close"]
    assert gate.pass_on("s", grammar, noting(done, "again")).result() == "again"


@pytest.mark.asyncio
async def test_a_call_whose_grammar_cannot_be_compiled_is_started_and_fails_by_itself() -> None:
    gate = Gate()

    def start() -> Future[Any]:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await asyncio.wrap_future(gate.pass_on("s", regex("[a"), start))

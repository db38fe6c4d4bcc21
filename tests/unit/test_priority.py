"""Threads that compute step back, and come forward again only where the system lets them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from actors.priority import Aside, step_back


class System:
    """A kernel that lets threads lower their priority, and raise it again only if `lets_rise`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, lets_rise: bool, usual: int = 0) -> None:
        self.nice: dict[int, int] = {}
        self._usual = usual
        self._lets_rise = lets_rise
        monkeypatch.setattr(os, "getpriority", lambda which, thread: self.nice.get(thread, usual))
        monkeypatch.setattr(os, "setpriority", self._set)

    def _set(self, which: int, thread: int, priority: int) -> None:
        if priority < self.nice.get(thread, self._usual) and not self._lets_rise:
            raise PermissionError
        self.nice[thread] = priority

    def here(self) -> int:
        return self.nice.get(threading.get_native_id(), self._usual)


def test_a_thread_steps_back_for_its_passes_alone_where_it_may_come_forward_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = System(monkeypatch, lets_rise=True, usual=3)
    aside = Aside()
    assert system.here() == 3
    for _ in range(2):
        with aside:
            assert system.here() == 13
        assert system.here() == 3
    with pytest.raises(ValueError, match="a pass fails"), aside:
        raise ValueError("a pass fails")
    assert system.here() == 3


def test_a_thread_that_may_not_come_forward_again_steps_back_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(monkeypatch, lets_rise=False)
    aside = Aside()
    assert system.here() == 10
    with aside:
        assert system.here() == 10
    assert system.here() == 10


@pytest.mark.parametrize("act", [step_back, Aside])
def test_no_thread_falls_below_the_lowest_priority_and_a_refusal_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> None:
    system = System(monkeypatch, lets_rise=False, usual=15)
    act()
    assert system.here() == 19

    def refuse(which: int, thread: int, priority: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    act()
    assert system.here() == 19

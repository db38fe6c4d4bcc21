"""Where in a grammar each text is: matchers at the ends of texts, found again by the text alone.

Nothing is told when tokens are taken back. A text that goes on moves its matcher on; a text that shares its beginning
with a known one goes on from a copy that was left behind before they part, which becomes the known one's matcher unless
that is far back, since then two sequences are at work rather than one with its drafts. So the answer is a function of
the text, whoever asks, in whatever order: for branches of a tree, for a sequence that moved, after a rollback.

The library can take a matcher back by itself, and is then sometimes in another place of the grammar (1.9.1: around the
space between two JSON tokens). Copies are right, and cost a few microseconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from actors.grammar.grammar import BadGrammar
from actors.messages import Ids

MAX_STATES = 128  # of one grammar; the least recently used one goes
_NEAR = 32  # tokens: as far as a draft may have gone beyond what is decided
_STRIDE = 8  # tokens between the copies that a matcher leaves behind, at least: so many may be read again
_SPARSE = 64  # a copy costs by the length of its text: this part of a long one lies between two
_LOOK_BACK = 64  # tokens: a text that is not known so far back is read from its beginning
_ID_BYTES = 4


class Matcher(Protocol):
    """A place in a grammar (`llguidance.LLMatcher`)."""

    def deep_copy(self) -> Matcher: ...
    def try_consume_tokens(self, tokens: list[int], /) -> int: ...
    def validate_tokens(self, tokens: list[int], /) -> int: ...
    def compute_bitmask(self) -> bytes: ...
    def is_accepting(self) -> bool: ...
    def is_error(self) -> bool: ...


@dataclass(slots=True, eq=False)
class _State:
    matcher: Matcher
    text: bytearray = field(default_factory=bytearray)  # the ids before it
    keys: list[int] = field(default_factory=list)  # entry i: of the first i + 1 ids
    # After so many ids, ascending. What goes back to before the oldest is read from the beginning of the text.
    copies: deque[tuple[int, Matcher]] = field(default_factory=deque)

    @property
    def num_tokens(self) -> int:
        return len(self.keys)

    def leave_copy(self) -> None:
        """Unless the last one is near; those go that are older than the newest that `_NEAR` tokens lie after."""
        last = self.copies[-1][0] if self.copies else 0
        if self.num_tokens - last >= max(_STRIDE, self.num_tokens // _SPARSE):
            self.copies.append((self.num_tokens, self.matcher.deep_copy()))
            while len(self.copies) > 1 and self.copies[1][0] <= self.num_tokens - _NEAR:
                self.copies.popleft()

    def take_back(self, num_tokens: int, start: Matcher) -> None:
        """To the first `num_tokens` of the text, whose keys are dropped already. `start`: before any text."""
        del self.text[_ID_BYTES * num_tokens :], self.keys[num_tokens:]
        while self.copies and self.copies[-1][0] > num_tokens:
            self.copies.pop()
        length, matcher = self.copies[-1] if self.copies else (0, start)
        self.matcher = matcher.deep_copy()
        again = np.frombuffer(self.text, np.int32)[length:].tolist()
        if again:
            self.matcher.try_consume_tokens(again)

    def split(self, num_tokens: int, start: Matcher) -> _State:
        """Another state, after the first `num_tokens` of this one's text."""
        other = _State(self.matcher, bytearray(self.text), list(self.keys), self.copies.copy())
        other.take_back(num_tokens, start)
        return other


class States:
    """The matchers of one grammar. For one thread at a time."""

    def __init__(self, start: Matcher) -> None:
        """`start`: at the beginning of every text; stays there."""
        self._start = start
        self._states: dict[int, _State] = {}  # by identity, least recently used first
        self._by_key: dict[int, _State] = {}  # of each known beginning of a text

    def __len__(self) -> int:
        return len(self._states)

    def at(self, text: Ids) -> Matcher | None:
        """The matcher after `text`; None: the grammar does not allow this text.

        Good until the next call. Raises `BadGrammar` when the grammar is too complex to go on.
        """
        if not len(text):
            return self._start
        data = text.astype(np.int32, copy=False).tobytes()
        state = self._nearest(data)
        self._states[id(state)] = self._states.pop(id(state), state)  # most recently used last
        fresh: list[int] = text[state.num_tokens :].tolist()
        num_taken = state.matcher.try_consume_tokens(fresh) if fresh else 0
        if state.matcher.is_error():
            self._forget(state)
            raise too_complex()
        for _ in range(num_taken):
            end = _ID_BYTES * (state.num_tokens + 1)
            key = hash(data[:end])
            state.text += data[end - _ID_BYTES : end]
            state.keys.append(key)
            self._by_key[key] = state
        state.leave_copy()
        while len(self._states) > MAX_STATES:
            self._forget(next(iter(self._states.values())))
        return state.matcher if num_taken == len(fresh) else None

    def _nearest(self, data: bytes) -> _State:
        """A state after a beginning of `data`, the longest that is known."""
        num_tokens = len(data) // _ID_BYTES
        for length in range(num_tokens, max(0, num_tokens - _LOOK_BACK), -1):
            beginning = data[: _ID_BYTES * length]
            state = self._by_key.get(hash(beginning))
            if state is None or not state.text.startswith(beginning):
                continue
            num_beyond = state.num_tokens - length
            if num_beyond > _NEAR:
                return state.split(length, self._start)
            if num_beyond:
                self._drop_keys(state, length)
                state.take_back(length, self._start)
            return state
        return _State(self._start.deep_copy())

    def _forget(self, state: _State) -> None:
        self._drop_keys(state, 0)
        self._states.pop(id(state), None)

    def _drop_keys(self, state: _State, start: int) -> None:
        for key in state.keys[start:]:
            if self._by_key.get(key) is state:
                del self._by_key[key]


def too_complex() -> BadGrammar:
    """Why a matcher cannot go on; what the library itself says may quote the text."""
    return BadGrammar("the grammar became too complex for this text: simplify it, or bound its repetitions")

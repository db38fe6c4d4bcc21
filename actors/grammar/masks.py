"""The tokens that a grammar allows after a text."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from actors.grammar.states import Matcher, States, too_complex
from actors.messages import Ids

Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


class Masks:
    """One compiled grammar. Every answer is a function of `output`, the ids after the prompt. Safe to call from
    several threads.

    A text ends with an end-of-sequence id, which may come where the grammar is fulfilled. After the end, and in a text
    that has left the grammar (which no target ever commits), nothing but an end may come: every text has a law.
    """

    def __init__(self, start: Matcher, num_ids: int, eos_ids: tuple[int, ...]) -> None:
        """`num_ids`: of the vocabulary; ids beyond are never allowed."""
        self._states = States(start)
        self._lock = threading.Lock()
        self._num_ids = num_ids
        self._eos_ids = eos_ids
        self._only_ends = np.zeros(num_ids, np.bool_)
        self._only_ends[list(eos_ids)] = True

    def has_ended(self, output: Ids) -> bool:
        """Whether `output` holds the end of the text, or is none that the grammar allows."""
        if self._holds_end(output):
            return True
        with self._lock:
            return self._states.at(output) is None

    def allows(self, output: Ids, token: int) -> bool:
        """Whether `token` may come after `output`: an entry of `allowed`, which costs far less. Raises `BadGrammar`."""
        if not 0 <= token < self._num_ids:
            return False
        if not self._holds_end(output):
            with self._lock:
                matcher = self._states.at(output)
                if matcher is not None:
                    return self._takes(matcher, token)
        return bool(self._only_ends[token])

    def allowed(self, output: Ids) -> Bools:
        """Which ids may come after `output`, [num_ids]; at least one. Not to be written to. Raises `BadGrammar`."""
        if self._holds_end(output):
            return self._only_ends
        with self._lock:
            matcher = self._states.at(output)
            if matcher is None:
                return self._only_ends
            packed = matcher.compute_bitmask()
            if matcher.is_error():
                raise too_complex()
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=self._num_ids, bitorder="little").view(np.bool_)
        if not bits.any():
            raise too_complex()
        return bits

    def _takes(self, matcher: Matcher, token: int) -> bool:
        is_allowed = matcher.is_accepting() if token in self._eos_ids else matcher.validate_tokens([token]) == 1
        if matcher.is_error():
            raise too_complex()
        return is_allowed

    def _holds_end(self, output: Ids) -> bool:
        return any(bool((output == token).any()) for token in self._eos_ids)

"""The memory of past outputs: what other requests were answered, whole or still growing.

Bounded by age: texts enter the newer of two generations; when it is full, the older one is forgotten and a new one
begins. So between half and all of what the bounds allow is remembered, and forgetting costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from actors.drafters.suffix_automaton import Cursor, SuffixAutomaton


class _Generation:
    def __init__(self, depth: int) -> None:
        self.automaton = SuffixAutomaton(depth)
        self.num_requests = 0


@dataclass(slots=True)
class Entry:
    """An output under way."""

    cursor: Cursor = field(default_factory=Cursor)
    generation: object | None = None  # the one that the cursor is of


class SuffixStore:
    """Outputs of at most `max_requests` requests and `max_tokens` tokens. For one thread at a time."""

    def __init__(self, depth: int, max_requests: int, max_tokens: int) -> None:
        """`max_requests` 0: nothing is remembered."""
        self._depth = depth
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._newer, self._older = _Generation(depth), _Generation(depth)

    @property
    def automata(self) -> Sequence[SuffixAutomaton]:
        """What to look outputs up in, newest first."""
        return [g.automaton for g in (self._newer, self._older) if g.automaton.num_tokens]

    @property
    def num_requests(self) -> int:
        """Outputs remembered."""
        return self._newer.num_requests + self._older.num_requests

    @property
    def num_tokens(self) -> int:
        """Tokens remembered."""
        return self._newer.automaton.num_tokens + self._older.automaton.num_tokens

    @property
    def num_bytes(self) -> int:
        """Memory, about."""
        return self._newer.automaton.num_bytes + self._older.automaton.num_bytes

    def extend(self, entry: Entry, tokens: Iterable[int]) -> None:
        """An output goes on. Only what is committed belongs here."""
        if self._max_requests == 0:
            return
        for token in tokens:
            if entry.generation is not self._newer:
                self._begin(entry)
            elif self._newer.automaton.num_tokens >= max(1, self._max_tokens // 2):
                self._turn()
                self._begin(entry)
            self._newer.automaton.append(entry.cursor, token)

    def _begin(self, entry: Entry) -> None:
        """An output's place in the newer generation; what it has in an older one stays there."""
        newer = self._newer
        if newer.num_requests >= max(1, self._max_requests // 2) or (
            newer.automaton.num_tokens >= max(1, self._max_tokens // 2)
        ):
            self._turn()
        self._newer.num_requests += 1
        entry.cursor, entry.generation = Cursor(), self._newer

    def _turn(self) -> None:
        self._older, self._newer = self._newer, _Generation(self._depth)

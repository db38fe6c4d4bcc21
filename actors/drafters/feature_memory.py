"""What drafters without an engine hold of each sequence: its tokens, and what they made of the target's features.

All of it is a cache: it is cut back where the truth has changed, and given up when room is short or nobody calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from actors.engine.features import FeaturesMissing
from actors.engine.jobs import PrefixMissing, ReplicaFull, StaleCall
from actors.messages import Context, Features, Ids

_LEFT_BEHIND_S = 5.0  # whoever has not called for so long makes room for anybody, else only for its elders
_NO_IDS: Ids = np.empty(0, np.int32)


class Memory(Protocol):
    """What a drafter keeps of the features of positions [start, end) of one sequence."""

    @property
    def start(self) -> int:
        """First position held."""

    @property
    def end(self) -> int:
        """Position after the last one held; as `start`: nothing is held."""

    @property
    def num_tokens(self) -> int:
        """Positions that there is memory for."""

    def num_tokens_with(self, end: int) -> int:
        """`num_tokens` once the positions up to `end` have been added."""

    def cut(self, end: int) -> None:
        """Hold nothing from position `end` on; no effect where nothing is."""

    def forget_before(self, start: int) -> None:
        """Nothing before position `start` will be wanted again."""

    def begin_at(self, position: int) -> None:
        """Hold nothing, and go on at `position`."""


M = TypeVar("M", bound=Memory)


@dataclass(slots=True)
class Held(Generic[M]):
    """One sequence."""

    sequence_id: str
    memory: M
    number: int  # order of opening
    used_at: float  # seconds of the clock
    ids: Ids = field(default_factory=lambda: _NO_IDS)
    round: int = -1


@dataclass(frozen=True, slots=True)
class Known(Generic[M]):
    """A call whose sequence has caught up with the truth."""

    held: Held[M]
    ids: Ids  # the whole text, [num_tokens]
    fresh: Features | None  # to be added to the memory, from its end on, before anything is drafted


class Sequences(Generic[M]):
    """The sequences of a drafter, within their limits. For one thread."""

    def __init__(
        self, open_memory: Callable[[], M], window: int, max_sequences: int, max_tokens: int | None,
        idle_timeout_s: float, clock: Callable[[], float],
    ) -> None:
        """`window`: positions before the newest token whose features a draft needs; 0: all. `max_tokens`: of all
        memories; None: they are too small to be counted."""
        self._open_memory = open_memory
        self._window = window
        self._max_sequences = max_sequences
        self._max_tokens = max_tokens
        self._idle_timeout_s = idle_timeout_s
        self._clock = clock
        self._held: dict[str, Held[M]] = {}  # least recently called first
        self._num_opened = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def num_tokens(self) -> int:
        """Positions that there is memory for."""
        return sum(held.memory.num_tokens for held in list(self._held.values()))  # counters are read by any thread

    @property
    def num_held_tokens(self) -> int:
        """Positions held."""
        return sum(held.memory.end - held.memory.start for held in list(self._held.values()))

    def catch_up(self, context: Context) -> Known[M]:
        """The sequence of a call, as the call says that it is.

        Raises `StaleCall`, `PrefixMissing`, `ReplicaFull`, and `FeaturesMissing` when the call brings too few; what it
        has brought is then forgotten, and nothing else.
        """
        held = self._called(context)
        told = context.tokens.astype(np.int32)
        common = context.start + _num_common(held.ids[context.start :], told)
        held.memory.cut(common)
        held.ids = np.concatenate([held.ids[: context.start], told])
        held.round = context.round
        wanted_end = context.num_tokens - 1  # nobody has run the newest token
        wanted_start = max(0, wanted_end - self._window) if self._window else 0
        held.memory.cut(wanted_end)
        held.memory.forget_before(wanted_start)
        fresh = self._fresh(held.memory, context.features, wanted_start, wanted_end)
        self._make_room(held, fresh)
        return Known(held, held.ids, fresh)

    def forget(self, sequence_id: str) -> None:
        """End a sequence; unknown ids are ignored."""
        self._held.pop(sequence_id, None)

    def forget_idle(self) -> None:
        """End those whom nobody has called for `idle_timeout_s`: their owner may have died."""
        now = self._clock()
        while self._held:
            oldest = next(iter(self._held.values()))
            if now - oldest.used_at <= self._idle_timeout_s:
                return
            del self._held[oldest.sequence_id]

    def clear(self) -> None:
        """End all."""
        self._held.clear()

    def _called(self, context: Context) -> Held[M]:
        now = self._clock()
        held = self._held.get(context.sequence_id)
        if held is None:
            if context.start > 0:
                raise PrefixMissing
            while len(self._held) >= self._max_sequences:
                oldest = next(iter(self._held.values()))
                if now - oldest.used_at <= _LEFT_BEHIND_S:
                    raise ReplicaFull(f"{self._max_sequences} sequences are being drafted for; raise max_sequences")
                del self._held[oldest.sequence_id]
            self._num_opened += 1
            held = Held(context.sequence_id, self._open_memory(), self._num_opened, now)
        if context.round < held.round:
            raise StaleCall(f"stale call: round {context.round} after round {held.round}")
        if context.start > len(held.ids):
            raise PrefixMissing
        self._held.pop(context.sequence_id, None)
        self._held[context.sequence_id] = held
        held.used_at = now
        return held

    def _fresh(self, memory: M, told: Features | None, start: int, end: int) -> Features | None:
        """The part of `told` that the memory lacks of [start, end), of which it then lacks nothing."""
        if end < 1:
            raise FeaturesMissing(0)
        if memory.end <= start or memory.start > start:  # what is held ends too early, or begins too late
            memory.begin_at(start)
        if memory.end >= end:
            return None
        if told is None or told.start > memory.end or told.end < end:
            raise FeaturesMissing(memory.end)
        return Features(memory.end, told.rows[memory.end - told.start : end - told.start])

    def _make_room(self, asking: Held[M], fresh: Features | None) -> None:
        """Take memory of others for `fresh`: of those left behind, then of younger ones, the longest unused first."""
        if self._max_tokens is None or fresh is None:
            return
        need = asking.memory.num_tokens_with(fresh.end)
        for victim in self._victims(asking):
            if self._others(asking) + need <= self._max_tokens:
                return
            del self._held[victim.sequence_id]
        if self._others(asking) + need > self._max_tokens:
            raise ReplicaFull(
                f"there is no room for the features of {need} tokens: raise kv_tokens, which is {self._max_tokens}"
            )

    def _victims(self, asking: Held[M]) -> Iterator[Held[M]]:
        now = self._clock()
        others = [held for held in self._held.values() if held is not asking]
        yield from [held for held in others if now - held.used_at > _LEFT_BEHIND_S]
        yield from [h for h in others if now - h.used_at <= _LEFT_BEHIND_S and h.number > asking.number]

    def _others(self, asking: Held[M]) -> int:
        return self.num_tokens - asking.memory.num_tokens


def _num_common(held: Ids, told: Ids) -> int:
    """Length of the common prefix."""
    length = min(len(held), len(told))
    differs = np.flatnonzero(held[:length] != told[:length])
    return int(differs[0]) if len(differs) else length

"""When simulated requests come, and how many are served at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Load(Protocol):
    """Arrivals of a scenario."""

    @property
    def num_sequences(self) -> int:
        """Requests in all."""

    @property
    def max_streams(self) -> int:
        """Requests served at once; the others wait in the order in which they came."""

    def arrivals(self, rng: np.random.Generator) -> list[float]:
        """Ascending times, in s, from which requests may be sent. [num_sequences]"""

    def sent_s(self, due_s: float, begin_s: float) -> float:
        """When a request was sent that could have been sent at `due_s` and found a place at `begin_s`."""


@dataclass(frozen=True, slots=True)
class Closed:
    """`max_streams` clients, each of which sends its next request when it has the answer to the last one."""

    num_sequences: int
    max_streams: int

    def __post_init__(self) -> None:
        _check(self)

    def arrivals(self, rng: np.random.Generator) -> list[float]:
        """All at once: a request is sent as soon as a stream is free."""
        return [0.0] * self.num_sequences

    def sent_s(self, due_s: float, begin_s: float) -> float:
        """A client sends when its last request has ended, and finds its place at once."""
        return begin_s


@dataclass(frozen=True, slots=True)
class Poisson:
    """Requests that come by themselves, `rate_per_s` on average."""

    num_sequences: int
    rate_per_s: float
    max_streams: int

    def __post_init__(self) -> None:
        _check(self)
        if self.rate_per_s <= 0:
            raise ValueError(f"rate {self.rate_per_s:g}/s: it must be positive")

    def arrivals(self, rng: np.random.Generator) -> list[float]:
        """Exponential gaps."""
        gaps: list[float] = np.cumsum(rng.exponential(1 / self.rate_per_s, self.num_sequences)).tolist()
        return gaps

    def sent_s(self, due_s: float, begin_s: float) -> float:
        """Whether there is a place or not."""
        return due_s


@dataclass(frozen=True, slots=True)
class Scripted:
    """Requests at given times, e.g. a spike."""

    times_s: tuple[float, ...]  # ascending
    max_streams: int

    def __post_init__(self) -> None:
        _check(self)

    @property
    def num_sequences(self) -> int:
        """Requests in all."""
        return len(self.times_s)

    def arrivals(self, rng: np.random.Generator) -> list[float]:
        """The times themselves."""
        return sorted(self.times_s)

    def sent_s(self, due_s: float, begin_s: float) -> float:
        """Whether there is a place or not."""
        return due_s


def _check(load: Load) -> None:
    if load.num_sequences < 1 or load.max_streams < 1:
        raise ValueError(f"{load}: at least one sequence and one stream are needed")

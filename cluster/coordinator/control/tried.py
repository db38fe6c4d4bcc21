"""How long rounds really took, by load and k: what the goodput model is held against.

A model of passes, hops and queues cannot know everything: whether streams fall into groups that take turns, whether
the drafter computes on the target's cores, what the coordinator's own work costs. All of that is in the wall time of a
round that all sequences of a replica made alike. Where such rounds were measured, the model's seconds are scaled to
them; in between, by what was measured next to it. Plain rounds stand apart: what queues do to drafts says nothing
about them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

MEMORY_ROUNDS = 6.0  # of all sequences, per entry
PRIOR = 1.0  # rounds at which a factor lies half-way between the model and what was measured near it
OWN_PRIOR = 0.7  # rounds of one k at which it lies half-way between that and its own measurements
NEAR = 1.0  # octaves of load over which a measurement is of use
HALF_LIFE_ROUNDS = 250.0  # of what is known of a k that is not used any more
FACTOR_MOST = 4.0  # more than that is no round but an accident
SPREAD = 3.0  # times the mean: a single round counts no more


class Entry:
    """Rounds of one k under one load."""

    __slots__ = ("load", "num", "round", "seconds")

    def __init__(self, load: float, seconds: float) -> None:
        self.num = 1.0  # samples
        self.load = load  # sequences, mean
        self.seconds = seconds  # mean
        self.round = 0.0  # when it was last added to


class Tried:
    """Of one target replica. `rungs` are those of a chain: one drafter's rounds say nothing about another's.

    Plain rounds have k = 0 and no rungs, whatever they are compared with.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int, tuple[int, ...], int], Entry] = {}  # by half octave of load, rungs, k
        self._round = 0.0  # of all sequences, so far

    def passed(self, load: int) -> None:
        """One of `load` sequences has made a round."""
        self._round += 1.0 / max(1, load)

    def add(self, load: int, rungs: tuple[int, ...], k: int, seconds: float) -> None:
        """A round of a sequence while all `load` of them drafted about k tokens."""
        key = (_octave(load), rungs, k)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(float(load), seconds)
        else:
            entry.num = min(entry.num + 1.0, max(8.0, MEMORY_ROUNDS * load))
            entry.load += (load - entry.load) / entry.num
            entry.seconds += (min(seconds, SPREAD * entry.seconds) - entry.seconds) / entry.num
        entry.round = self._round

    def rounds(self, load: int, rungs: tuple[int, ...], k: int) -> float:
        """How many rounds of all sequences are known at this load and k; less with every round since."""
        entry = self._entries.get((_octave(load), rungs if k else (), k))
        return 0.0 if entry is None else self._weight(entry)

    def _weight(self, entry: Entry) -> float:
        return entry.num / entry.load * math.pow(0.5, (self._round - entry.round) / HALF_LIFE_ROUNDS)

    def factors(
        self, load: int, rungs: tuple[int, ...], max_k: int, model: Callable[[float, int], float]
    ) -> tuple[list[float], list[float]]:
        """[max_k + 1] measured seconds of a round / those of `model(load, k)`, and the rounds that this rests on.

        What was measured at a k stands for itself as soon as it is more than a round or two: the steps of a queue are
        sharp. Before that, what was measured near it is the best guess.
        """
        near: list[tuple[int, float, float]] = []
        own: dict[int, tuple[float, float]] = {}
        here = _octave(load)
        for (octave, used, k), entry in self._entries.items():
            if k and used != rungs:
                continue
            distance = abs(math.log2(entry.load / load))
            if distance <= NEAR:
                expected = model(entry.load, k)
                if expected > 0 and entry.seconds > 0:
                    factor = min(FACTOR_MOST, max(1 / FACTOR_MOST, entry.seconds / expected))
                    weight = self._weight(entry) * math.pow(0.06, distance)
                    near.append((k, weight, math.log(factor)))
                    if octave == here:
                        own[k] = weight, math.log(factor)
        factors, rounds = [], []
        for k in range(max_k + 1):
            mean, total = 0.0, PRIOR
            kernel = _KERNEL[min(k, 64)]
            for other, weight, log_factor in near:
                if (k == 0) == (other == 0):
                    weight *= kernel[min(other, 64)]
                    total += weight
                    mean += weight * log_factor
            own_weight, own_log = own.get(k, (0.0, 0.0))
            factors.append(math.exp((OWN_PRIOR * mean / total + own_weight * own_log) / (OWN_PRIOR + own_weight)))
            rounds.append(total - PRIOR)
        return factors, rounds


def _octave(load: float) -> int:
    """Half octaves."""
    return round(2 * math.log2(max(1.0, load)))


_KERNEL = [[math.pow(4.0, -abs(math.log2((a + 1) / (b + 1)))) for b in range(65)] for a in range(65)]


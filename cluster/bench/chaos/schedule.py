"""Which fault comes when, as a function of a seed (pure)."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.bench.chaos.faults import Fault


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault, with all that is left to chance in it."""

    fault: Fault
    number: int  # of this kind, from 0
    after_s: float  # after the load is under way
    lasts_s: float
    where: float  # 0 to 1: which of several victims
    seed: int  # of further choices

    def pick(self, count: int) -> int:
        """Which of `count` victims."""
        return min(int(self.where * count), count - 1)

    def chance(self) -> random.Random:
        """For further choices: the same in every run of this seed."""
        return random.Random(self.seed)


AFTER_S = (0.6, 1.4)


def schedule(faults: Sequence[Fault], runs: int, seed: int) -> list[Blow]:
    """`runs` blows of each kind, in an order of its own: what one leaves behind meets all others in time."""
    blows = [_blow(fault, number, seed) for fault in faults for number in range(runs)]
    random.Random(seed).shuffle(blows)
    return blows


def _blow(fault: Fault, number: int, seed: int) -> Blow:
    own = zlib.crc32(repr((seed, fault.name, number)).encode())
    chance = random.Random(own)
    return Blow(fault, number, chance.uniform(*AFTER_S), chance.uniform(*fault.lasts_s), chance.random(), own)


def endless(faults: Sequence[Fault], seed: int, count: int) -> list[Blow]:
    """`count` blows for a soak: every kind once before any comes again, each time in another order."""
    found: list[Blow] = []
    number = 0
    while len(found) < count:
        turn = [_blow(fault, number, seed) for fault in faults]
        random.Random(seed + number).shuffle(turn)
        found += turn
        number += 1
    return found[:count]

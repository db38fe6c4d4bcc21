"""How likely the token at each position of a draft is to be accepted, given that those before it were.

Counts are kept with exponential forgetting. All sequences of a kind share a pool, which knows the shape over the
positions; a sequence's own counts move its level (log-odds) away from the pool's, as far as they weigh against
`SHRINK` tries. A sequence that has not been tried for a while thereby drifts back to what the others see.
"""

from __future__ import annotations

import math

START_RATE = 0.8  # believed of a pair never tried: optimistic, so that it is tried
START_TRIES = 4.0  # weight of that belief
OPTIMISM = 0.5  # standard errors of the pool's level that are added to it: what looks bad is tried a little longer
SHRINK = 12.0  # tries of its own at which a sequence's level lies half-way between the pool's and its own
SHRINK_IN_CROWDS = 40.0  # the same from `CROWD` sequences on: who shares passes gains by planning as the others do, so
CROWD = 16  # what may be chance sets nobody apart
SMOOTH = 8.0  # tries at which a position's rate lies half-way between its own and that of the position before
LOWEST, HIGHEST = 0.02, 0.995

KEEP_SEQUENCE = 0.95  # per checked draft: about 20 drafts are remembered
KEEP_IDLE = 0.97  # per round without a draft
KEEP_POOL = 0.995
HALF_LIFE_S = 60.0  # of what a pool knows and nothing confirms
KEEP_POOL_PROBE = 0.9  # probes are rare: they must count while they are fresh


class Counts:
    """Tries and hits by position, forgetting."""

    __slots__ = ("hits", "tries", "version")

    def __init__(self, num_positions: int) -> None:
        self.tries = [0.0] * num_positions
        self.hits = [0.0] * num_positions
        self.version = 0

    def observe(self, num_draft: int, num_accepted: int, keep: float) -> None:
        """Positions up to the first rejection were tried; what follows it says nothing."""
        self.forget(keep)
        tries, hits = self.tries, self.hits
        num_hits = min(num_accepted, len(tries))
        for i in range(num_hits):
            tries[i] += 1.0
            hits[i] += 1.0
        if num_accepted < num_draft and num_hits < len(tries):
            tries[num_hits] += 1.0

    def forget(self, keep: float) -> None:
        """Let everything known weigh `keep` of what it weighed."""
        self.tries = [x * keep for x in self.tries]
        self.hits = [x * keep for x in self.hits]
        self.version += 1


class PoolAcceptance:
    """What all sequences of one kind tell about one pair of tiers."""

    __slots__ = ("_counts", "_rates", "_seen_s", "_start", "_version")

    def __init__(self, num_positions: int, start_rate: float = START_RATE) -> None:
        self._counts = Counts(num_positions)
        self._start = start_rate
        self._seen_s: float | None = None  # when it last learned something, or forgot
        self._version = -1
        self._rates: tuple[float, ...] = ()

    @property
    def version(self) -> int:
        """Grows with every observation."""
        return self._counts.version

    @property
    def num_tries(self) -> float:
        """Weight of what is known."""
        return sum(self._counts.tries)

    def observe(self, num_draft: int, num_accepted: int, *, is_probe: bool) -> None:
        """Add a verdict on a draft of any sequence."""
        self._counts.observe(num_draft, num_accepted, KEEP_POOL_PROBE if is_probe else KEEP_POOL)

    def touch(self, now: float) -> None:
        """Something is learned at this time (seconds)."""
        self._seen_s = now

    def age(self, now: float) -> None:
        """Forget what nothing has confirmed for a while: half of it in `HALF_LIFE_S`."""
        if self._seen_s is None:
            return
        idle_s = now - self._seen_s
        if idle_s > HALF_LIFE_S / 8:
            self._counts.forget(0.5 ** (idle_s / HALF_LIFE_S))
            self._seen_s = now

    def rates(self) -> tuple[float, ...]:
        """[num_positions] conditional acceptance."""
        if self._version != self._counts.version:
            counts = self._counts
            weight = sum(counts.tries) + START_TRIES
            level = (sum(counts.hits) + START_TRIES * self._start) / weight
            doubt = OPTIMISM / math.sqrt(weight)
            rates = []
            for tries, hits in zip(counts.tries, counts.hits, strict=True):
                level = (hits + SMOOTH * level) / (tries + SMOOTH)
                rates.append(_bounded(level + doubt * math.sqrt(level * (1 - level))))
            self._rates = tuple(rates)
            self._version = counts.version
        return self._rates


class Acceptance:
    """One sequence's acceptance between one pair of tiers."""

    __slots__ = ("_counts", "_key", "_pool", "_rates")

    def __init__(self, pool: PoolAcceptance, num_positions: int) -> None:
        self._pool = pool
        self._counts = Counts(num_positions)
        self._key = (-1, -1, 0)
        self._rates: tuple[float, ...] = ()

    def observe(self, num_draft: int, num_accepted: int, *, is_probe: bool) -> None:
        """Add a verdict on this sequence's draft, for the sequence and for its pool."""
        self._counts.observe(num_draft, num_accepted, KEEP_SEQUENCE)
        self._pool.observe(num_draft, num_accepted, is_probe=is_probe)

    def idle(self) -> None:
        """A round passed without a draft between these tiers."""
        self._counts.forget(KEEP_IDLE)

    def rates(self, num_sharing: int = 1) -> tuple[float, ...]:
        """[num_positions] conditional acceptance, for a sequence whose passes `num_sharing` sequences share."""
        num_sharing = min(num_sharing, CROWD)
        key = (self._counts.version, self._pool.version, num_sharing)
        if key != self._key:
            self._key = key
            self._rates = self._shifted(self._pool.rates(), num_sharing)
        return self._rates

    def _shifted(self, pool: tuple[float, ...], num_sharing: int) -> tuple[float, ...]:
        tries, hits = self._counts.tries, self._counts.hits
        num_tries = sum(tries)
        if num_tries < 0.5:
            return pool
        expected = _bounded(sum(n * p for n, p in zip(tries, pool, strict=True)) / num_tries)
        shrink = SHRINK + (SHRINK_IN_CROWDS - SHRINK) * max(0, num_sharing - 1) / (CROWD - 1)
        level = _bounded((sum(hits) + shrink * expected) / (num_tries + shrink))
        odds = level / (1 - level) * (1 - expected) / expected
        return tuple([_bounded(odds * p / (1 - p + odds * p)) for p in pool])


def rule_of_thumb(rate: float, max_lookahead: int) -> int:
    """k while nothing is known of the costs: about -1 / ln(rate), at least 3, 8 where nearly all is accepted."""
    if rate > 0.9:
        k = 8
    elif rate < 0.75:
        k = 3
    else:
        k = round(-1 / math.log(rate))
    return min(k, max_lookahead)


def _bounded(rate: float) -> float:
    return LOWEST if rate < LOWEST else HIGHEST if rate > HIGHEST else rate

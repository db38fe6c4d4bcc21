"""What a simulated load came to: streams, passes, and the figures of both. Times are simulated seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.bench.stats import per_token_gaps, percentile
from cluster.coordinator.request import SpeculationFigures
from cluster.simulation.device import Pass


@dataclass(frozen=True, slots=True)
class Stream:
    """One request from its arrival to its end."""

    arrives_s: float
    begin_s: float  # when it got a place
    end_s: float
    times_s: tuple[float, ...]  # of each block of committed tokens
    counts: tuple[int, ...]  # tokens of each block
    token_ids: tuple[int, ...]
    figures: SpeculationFigures
    failure: str | None = None  # a `FailureCode` when it could not be served to its end


@dataclass(frozen=True, slots=True)
class ReplicaRun:
    """What one device did."""

    tier: int
    replica_id: str
    passes: tuple[Pass, ...]

    def busy_s(self, begin_s: float, end_s: float) -> float:
        """Time inside passes between two instants."""
        return sum(max(0.0, min(end_s, p.begin_s + p.seconds) - max(begin_s, p.begin_s)) for p in self.passes)


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """Rates are those of the steady part, latencies those of all streams. None: nothing to measure it by."""

    streams: int
    failed: int
    window_s: float  # the steady part: until the last stream began
    tokens_per_s: float
    first_token_s_p50: float | None  # from arrival, the wait for a place included
    first_token_s_p99: float | None
    per_token_s_p50: float | None
    per_token_s_p99: float | None
    utilisation: tuple[float, ...]  # by tier: share of the steady part that its devices spent in passes
    rows_per_pass: tuple[float, ...]  # by tier
    committed_per_round: float  # mean committed tokens (MAT)
    acceptance: float | None
    ahead: dict[str, int]  # what became of drafts for outcomes of passes under way ("hit", ...) -> times
    degraded_rounds: int  # plain steps although a draft was wanted
    degraded_share: float  # of all rounds
    degraded: dict[str, int]  # "tier<i>:<reason>" -> times

    def as_json(self) -> dict[str, object]:
        """Plain JSON types."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one scenario; emulated throughout."""

    streams: tuple[Stream, ...]
    replicas: tuple[ReplicaRun, ...]
    end_s: float

    def figures(self) -> LoadFigures:
        """What it amounts to."""
        begin_s, end_s = self.window()
        streams = self.streams
        blocks = [block for stream in streams for block in zip(stream.times_s, stream.counts, strict=True)]
        firsts = [stream.times_s[0] - stream.arrives_s for stream in streams if stream.times_s]
        gaps = [gap for stream in streams for gap in per_token_gaps(stream.times_s, stream.counts)]
        parts = [stream.figures for stream in streams]
        rounds = sum(part.rounds for part in parts)
        drafted = sum(part.drafted for part in parts)
        degraded_rounds = sum(part.degraded_steps for part in parts)
        tiers = sorted({replica.tier for replica in self.replicas})
        return LoadFigures(
            streams=len(streams),
            failed=sum(1 for stream in streams if stream.failure is not None),
            window_s=end_s - begin_s,
            tokens_per_s=sum(count for at, count in blocks if begin_s < at <= end_s) / (end_s - begin_s),
            first_token_s_p50=percentile(firsts, 0.5), first_token_s_p99=percentile(firsts, 0.99),
            per_token_s_p50=percentile(gaps, 0.5), per_token_s_p99=percentile(gaps, 0.99),
            utilisation=tuple(_utilisation(self._tier(tier), begin_s, end_s) for tier in tiers),
            rows_per_pass=tuple(_rows(self._tier(tier)) for tier in tiers),
            committed_per_round=sum(part.committed for part in parts) / rounds if rounds else 0.0,
            acceptance=sum(part.accepted for part in parts) / drafted if drafted else None,
            ahead=_summed([part.ahead for part in parts]),
            degraded_rounds=degraded_rounds,
            degraded_share=degraded_rounds / rounds if rounds else 0.0,
            degraded=_summed([part.degraded for part in parts]),
        )

    def window(self) -> tuple[float, float]:
        """The steady part: from the first arrival until the last stream began, while there was load enough.

        All of it when that is less than half of it (few streams, all of which began at once).
        """
        begin_s = min(stream.arrives_s for stream in self.streams)
        end_s = max(stream.end_s for stream in self.streams)
        last_s = max(stream.begin_s for stream in self.streams)
        return begin_s, last_s if last_s - begin_s >= (end_s - begin_s) / 2 else end_s

    def _tier(self, tier: int) -> list[ReplicaRun]:
        return [replica for replica in self.replicas if replica.tier == tier]


def _utilisation(replicas: Sequence[ReplicaRun], begin_s: float, end_s: float) -> float:
    return sum(replica.busy_s(begin_s, end_s) for replica in replicas) / (len(replicas) * (end_s - begin_s))


def _rows(replicas: Sequence[ReplicaRun]) -> float:
    passes = [step.rows for replica in replicas for step in replica.passes]
    return sum(passes) / len(passes) if passes else 0.0


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))


def _plain(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [_plain(each) for each in value] if isinstance(value, tuple) else value

"""What the streams of a run prove (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.bench.chaos.faults import Fault, Promise
from cluster.bench.chaos.timeline import longest_gap_s

OK = "OK"
LEFT = "LEFT"  # the client itself ended it, as it was told to
HUNG = "HUNG"  # neither a finish nor a status in time: must never happen


@dataclass(slots=True)
class Stream:
    """One request as its client saw it. Times are on the machine's monotonic clock, in s."""

    ask: str  # what was asked, by name
    began_s: float
    times_s: list[float] = field(default_factory=list)  # of chunks with tokens
    ids: list[int] = field(default_factory=list)
    status: str = HUNG
    detail: str = ""
    ended_s: float = 0.0
    moves: int = 0  # leases taken after the first
    degraded: dict[str, int] = field(default_factory=dict)  # rounds that went without a tier, by reason
    resumed: bool = False  # by the project's own client, whenever it is cut: nothing may end it

    def under_way(self, at_s: float) -> bool:
        """Whether it had begun to speak at that time, and had not ended."""
        return bool(self.times_s) and self.times_s[0] <= at_s < self.ended_s


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of all streams of a run."""

    broken: tuple[str, ...]  # promises, one line each
    num_streams: int
    num_under_way: int  # when the fault came
    num_cut: int  # ended, or refused, with a status that is allowed
    num_wrong_tokens: int  # lost, repeated or other ids
    longest_gap_s: float  # in streams that were kept


def judge(
    streams: Sequence[Stream], expected: Mapping[str, Sequence[int]], fault: Fault, blow_s: float
) -> Judgement:
    """What was promised, and whether it was kept."""
    broken: list[str] = []
    num_cut = num_wrong = 0
    gaps = [0.0]
    for stream in streams:
        wrong = wrong_tokens(stream, expected[stream.ask])
        num_wrong += wrong
        if wrong:
            broken.append(f"{stream.ask}: {wrong} tokens are lost, repeated or others ({stream.status})")
        if stream.status in (OK, LEFT):
            gaps.append(longest_gap_s(stream.times_s, blow_s))
        elif may_end(stream, fault):
            num_cut += 1
        else:
            broken.append(f"{stream.ask}: {stream.status} after {len(stream.ids)} tokens: {stream.detail}")
    return Judgement(
        tuple(broken), len(streams), sum(stream.under_way(blow_s) for stream in streams), num_cut, num_wrong, max(gaps)
    )


def may_end(stream: Stream, fault: Fault) -> bool:
    """Whether a stream may end with the status that it has."""
    return fault.promise is Promise.CUT and stream.status in fault.endings and not stream.resumed


def wrong_tokens(stream: Stream, expected: Sequence[int]) -> int:
    """Positions at which a stream differs from what was expected; of one that did not finish, as far as it came."""
    wrong = sum(1 for got, want in zip(stream.ids, expected, strict=False) if got != want)
    if stream.status == OK:
        return wrong + abs(len(stream.ids) - len(expected))
    return wrong + max(0, len(stream.ids) - len(expected))

"""What is known of one replica: its curve, how crowded its passes are, and what a round costs around them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from cluster.coordinator.control.costs import Average, PassCurve
from cluster.coordinator.control.goodput import Round, Station
from cluster.coordinator.control.tried import Tried

FIRST_CREDIT = 0.2  # rounds
MOST_OTHERS = 256.0  # rows in a pass for each that this coordinator planned, at most
QUEUED = 0.15  # passes of waiting from which on a sequence is taken to wait for the passes of others


KIND_PRIOR = 4.0  # rounds of a kind at which its own measurements weigh as much as those of chains


@dataclass(frozen=True, slots=True)
class Table:
    """Rounds of chains from one drafter. Each list is [max_k + 1], by k; 0 is plain."""

    seconds: list[float]  # of a round, as far as is known
    factors: list[float]  # measured / expected seconds
    rounds: list[float]  # of all sequences, that this rests on
    load: int  # sequences
    news: int  # when it was made


class Company:
    """How sequences share a replica's passes under about one load, either all plain or all drafting."""

    def __init__(self) -> None:
        self.ratio = Average(40.0)  # rows in a pass / rows that this coordinator's plans put into it
        self.wait = Average()  # time until a pass begins, in passes, when it is short: an overhead
        self.cycle = Average()  # seconds of a round in passes, of rounds that waited for the passes of others


class Replica:
    """A replica of any tier, as this coordinator's sequences see it.

    `planned` counts what their latest plans put into one pass: rows in the target, sequences in a lower tier. A pass
    shows more rows where other coordinators use the replica too, fewer where the sequences take turns in groups. Which
    of it holds depends on the load and on whether they draft, so it is remembered apart for each.
    """

    def __init__(self, curve: PassCurve) -> None:
        self.curve = curve
        self.num_running = 0  # this coordinator's sequences that hold a lease
        self.planned = 0
        self.tried = Tried()
        self.news = 0  # rounds that were learned from
        # By drafter, as long as that is known itself:
        self.tables: WeakKeyDictionary[Replica, Table] = WeakKeyDictionary()
        self.kinds: dict[str, Average] = {}  # measured / expected seconds of rounds that are not chains
        self.kind_counts: Counter[str] = Counter()  # sequences whose latest plan is of a kind
        self.kind_news = 0  # how often a first sequence has taken to another kind
        self._company: dict[tuple[int, bool], Company] = {}  # by half octaves of load, and whether they draft
        self._drag = Average()
        self._around: dict[tuple[int, ...], Average] = {}  # hops and queues of a round with these rungs, s
        self.switch_s = Average()
        self.num_plain_plans = 0  # since the last probe
        self.trial_id = 0  # of the latest group trial
        self.trial_k = 0
        self.trial_until = 0.0  # rounds known of it
        self.trial_charged: float | None = None  # rounds that it was expected to cost; None: the account is settled
        self.trial_credit = FIRST_CREDIT  # rounds of all sequences that trials may still cost
        self.common_k = Average(64.0)  # of the chains planned for this target
        self.num_plans = 0
        self.probe_every = 0  # plain plans between two probes, when it was last worked out

    def _in_company(self, drafting: bool) -> Company:
        key = (_octave(self.num_running), drafting)
        company = self._company.get(key)
        if company is None:
            company = self._company[key] = Company()
        return company

    def _known(self, what: str, load: float, drafting: bool) -> float | None:
        """An average at the load nearest to this one at which it is known, within two octaves."""
        here = _octave(load)
        found: tuple[int, float] | None = None
        for (octave, drafts), company in self._company.items():
            if drafts == drafting and abs(octave - here) <= 4:
                average: Average = getattr(company, what)
                if average.num and (found is None or abs(octave - here) < found[0]):
                    found = (abs(octave - here), average.value)
        return None if found is None else found[1]

    def ratio(self, load: float, *, drafting: bool) -> float:
        """Rows in a pass / rows that this coordinator's plans put into it."""
        known = self._known("ratio", load, drafting)
        if known is None and drafting:  # plain gets the benefit of the doubt, drafts do not
            known = self._known("ratio", load, False)
        return 1.0 if known is None else known

    def station(self, *, load: float | None = None, drafting: bool = True) -> Station:
        """The replica if all of its sequences do alike."""
        load = self.num_running if load is None else load
        crowd = max(1.0, self.ratio(load, drafting=drafting) * load)
        return Station(self.curve, crowd, self._drag.value if self._drag.num else 1.0)

    def saw_pass(
        self, rows: int, seconds: float, rows_each: float, now: float, round_s: float, *, drafting: bool, alike: bool
    ) -> None:
        """A pass of a round that ended `now`, with `rows_each` rows for each unit of `planned`; `alike`: all sequences
        plan the same."""
        if self.curve.observe(rows, seconds, now, round_s) and alike:
            ratio = min(MOST_OTHERS, rows / (max(1, self.planned) * rows_each))
            self._in_company(drafting).ratio.add(ratio)

    def saw_drag(self, measured_s: float, expected_s: float) -> None:
        """Seconds inside passes, and what the curve expects of as many passes as there were tokens."""
        if expected_s > 0 and measured_s > 0:
            self._drag.add(min(5.0, max(0.05, measured_s / expected_s)))

    def saw_round(self, rungs: tuple[int, ...], around_s: float, wait: float, cycle: float, *, alike: bool) -> None:
        """A round that ended in this target; `wait` and `cycle` (the whole round) in passes."""
        self._around.setdefault(rungs, Average()).add(max(0.0, around_s))
        if alike:
            company = self._in_company(bool(rungs))
            if wait < QUEUED:
                company.wait.add(max(0.0, wait))
            if wait >= QUEUED or (company.cycle.num and cycle < company.cycle.value):
                company.cycle.add(cycle)  # also when it proves shorter: then there is no queue any more

    def round(self, rungs: tuple[int, ...], middle_s: float, load: float | None = None) -> Round:
        """What a round with these rungs costs apart from passes. What was never seen is inferred from what was."""
        load = self.num_running if load is None else load
        plain = self._around.get(())
        exact = self._around.get(rungs)
        others = [a.value for key, a in self._around.items() if key]
        if exact is not None and rungs:
            draft_s = exact.value
        elif others:
            draft_s = sum(others) / len(others)
        else:
            draft_s = 2 * plain.value if plain else 0.0  # two calls instead of one
        plain_wait, plain_cycle = self._queue(load, False)
        draft_wait, draft_cycle = self._queue(load, True)
        return Round(
            plain_s=plain.value if plain else draft_s / 2, draft_s=draft_s, plain_wait=plain_wait,
            draft_wait=draft_wait, plain_cycle=plain_cycle, draft_cycle=draft_cycle,
            middle_s=middle_s, switch_s=self.switch_s.value,
        )

    def _queue(self, load: float, drafting: bool) -> tuple[float, float]:
        """Wait and cycle, in passes: a short wait is an overhead, a long one is other sequences' turn."""
        wait = self._known("wait", load, drafting) or 0.0  # none until seen: then it will be
        if load < 2:
            return wait, 0.0
        return wait, self._known("cycle", load, drafting) or 0.0

    def seconds(self, load: float, k: int, draft: Replica, rungs: tuple[int, ...]) -> float:
        """What the model expects of a round of k tokens from `draft`, if all of `load` sequences do alike; 0: plain."""
        costs = self.round(rungs, 0.0, load)
        if k == 0:
            return costs.plain_seconds(self.station(load=load, drafting=False).seconds(1.0))
        below = draft.station(load=draft.num_running * load / max(1, self.num_running))
        return costs.draft_seconds(k * below.seconds(1.0), self.station(load=load).seconds(k + 1.0))

    def table(self, draft: Replica, rungs: tuple[int, ...], max_k: int) -> Table:
        """What rounds take, as measured where they were. Worked out anew when much is new."""
        load = max(1, self.num_running)
        known = self.tables.get(draft)
        patience = max(2, load // 2, min(5, self.news // 20))  # rounds
        if known is not None and known.load == load and self.news - known.news < patience:
            return known
        costs, below_s = self.round(rungs, 0.0), draft.station().seconds(1.0)
        plain, station = self.station(drafting=False), self.station()
        flat, slope, knot = self.curve.terms()
        model = [costs.plain_seconds(plain.seconds(1.0))]
        for k in range(1, max_k + 1):
            rows = station.crowd * (k + 1)
            pass_s = station.drag * (flat + slope * (rows - knot) if rows > knot else flat)
            model.append(costs.draft_seconds(k * below_s, pass_s))

        def expected(other: float, k: int) -> float:
            return model[k] if abs(other - load) < 0.01 * load else self.seconds(other, k, draft, rungs)

        factors, rounds = self.tried.factors(load, rungs, max_k, expected)
        seconds = [s * f for s, f in zip(model, factors, strict=True)]
        table = self.tables[draft] = Table(seconds, factors, rounds, load, self.news)
        return table

    def doubt(self, kind: str, k: int, draft: Replica) -> float:
        """Measured / expected seconds of rounds of a kind; of one never tried, that of chains of about k tokens."""
        table = self.tables.get(draft)
        like = table.factors[min(k, len(table.factors) - 1)] if table is not None else 1.0
        known = self.kinds.get(kind)
        if known is None:
            return like
        return max(0.25, (known.num * known.value + KIND_PRIOR * like) / (known.num + KIND_PRIOR))


def _octave(load: float) -> int:
    return round(2 * math.log2(max(1.0, load)))


class Fleet:
    """All replicas of all tiers that were met."""

    def __init__(self) -> None:
        self._replicas: dict[tuple[int, str], Replica] = {}
        self._latest: dict[int, Replica] = {}

    def meet(self, tier: int, replica_id: str) -> Replica:
        """The replica; a new one is taken to be like the tier's last one."""
        key = (tier, replica_id)
        replica = self._replicas.get(key)
        if replica is None:
            like = self._latest.get(tier)
            replica = Replica(like.curve.like() if like else PassCurve())
            self._replicas[key] = replica
        self._latest[tier] = replica
        return replica

    def part(self, tier: int, replica_id: str) -> None:
        """Forget a replica that no sequence uses, when there are many."""
        if len(self._replicas) > 256 and self._replicas[tier, replica_id].num_running == 0:
            del self._replicas[tier, replica_id]

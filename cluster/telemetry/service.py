"""The metrics of an ingress replica: what its requests met, counted per request and added up when somebody asks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from cluster.coordinator.figures import FigureCounter
from cluster.telemetry import metrics as m
from cluster.telemetry.histogram import Histogram
from cluster.telemetry.metrics import Metric, Sample
from cluster.telemetry.totals import Totals, Window

Clock = Callable[[], float]


class RequestMeter:
    """One request, from its arrival to its end."""

    def __init__(self, service: ServiceMetrics, began_s: float) -> None:
        self._service = service
        self._began_s = began_s
        self._last_s: float | None = None  # when its latest tokens came
        self.figures: FigureCounter | None = None
        self.num_prompt_tokens = 0

    def taken(self, figures: FigureCounter, num_prompt_tokens: int) -> None:
        """The request is a good one; `figures` is what counts its rounds from now on."""
        self.figures, self.num_prompt_tokens = figures, num_prompt_tokens
        self._service.prompt_tokens += num_prompt_tokens

    def admitted(self) -> None:
        """It is its turn."""
        self._service.queue_time.add(self._service.clock() - self._began_s)

    def tokens(self, count: int) -> None:
        """A round has committed `count` tokens."""
        now = self._service.clock()
        if self._last_s is None:
            self._service.ttft.add(now - self._began_s)
        else:
            self._service.inter_token.add((now - self._last_s) / count, count)
        self._last_s = now

    def ended(self, outcome: str) -> None:
        """The request has ended; once."""
        self._service.e2e_latency.add(self._service.clock() - self._began_s)
        self._service.ended(self, outcome)


class ServiceMetrics:
    """Of one ingress replica."""

    def __init__(self, tiers: Sequence[str], pools: Sequence[str], clock: Clock = time.monotonic) -> None:
        """`tiers`: names of all tiers; `pools`: of those that are leased, as the coordinator counts them."""
        self._tiers = tuple(tiers)
        self._pools = tuple(pools)
        self.clock = clock
        self.prompt_tokens = 0
        self.ttft, self.inter_token = Histogram(), Histogram()
        self.e2e_latency, self.queue_time = Histogram(), Histogram()
        self._outcomes: Counter[str] = Counter()
        self._ended = Totals()
        self._open: dict[int, RequestMeter] = {}  # by identity
        self._window = Window(clock())

    def request(self) -> RequestMeter:
        """A request has come."""
        meter = RequestMeter(self, self.clock())
        self._open[id(meter)] = meter
        return meter

    def refused(self, outcome: str) -> None:
        """A request was turned away before anything of it was read."""
        self._outcomes[outcome] += 1

    def ended(self, meter: RequestMeter, outcome: str) -> None:
        """Of `RequestMeter.ended`."""
        del self._open[id(meter)]
        self._outcomes[outcome] += 1
        if meter.figures is not None:
            self._ended.add(meter.figures.snapshot(), meter.num_prompt_tokens)

    def totals(self) -> Totals:
        """Of all requests, those under way included."""
        sums = Totals()
        for name in Totals.__slots__:
            value = getattr(self._ended, name)
            setattr(sums, name, value.copy() if isinstance(value, Counter) else value)
        for meter in self._open.values():
            if meter.figures is not None:
                sums.add(meter.figures.snapshot(), meter.num_prompt_tokens)
        return sums

    def samples(self) -> tuple[Sample, ...]:
        """All of it now."""
        return tuple(self._samples(self.totals()))

    def _samples(self, sums: Totals) -> Iterator[Sample]:
        for outcome, count in self._outcomes.items():
            yield Sample(m.REQUESTS, count, (outcome,))
        yield Sample(m.PROMPT_TOKENS, self.prompt_tokens)
        yield Sample(m.TTFT, self.ttft.snapshot())
        yield Sample(m.INTER_TOKEN, self.inter_token.snapshot())
        yield Sample(m.E2E_LATENCY, self.e2e_latency.snapshot())
        yield Sample(m.QUEUE_TIME, self.queue_time.snapshot())
        plain: dict[Metric, float] = {
            m.GENERATION_TOKENS: sums.committed, m.ROUNDS: sums.rounds, m.DRAFTS: sums.drafts,
            m.DRAFT_TOKENS: sums.drafted, m.ACCEPTED_TOKENS: sums.accepted, m.RECOVERED: sums.recovered,
            m.BONUS: sums.bonus, m.ROLLED_BACK: sums.drafted - sums.accepted, m.RELAXED: sums.relaxed,
            m.LEASE_SECONDS: sums.lease_s, m.CONTROL_SECONDS: sums.control_s, m.DEGRADED_STEPS: sums.degraded_steps,
            m.DEGRADED_REQUESTS: sums.degraded_requests, m.LEASE_MOVES: sums.lease_moves,
        }
        for metric, value in plain.items():
            yield Sample(metric, value)
        for metric, by_position in ((m.DRAFTED_AT, sums.drafted_at), (m.ACCEPTED_AT, sums.accepted_at)):
            for position, count in by_position.items():
                yield Sample(metric, count, (str(position),))
        for tier, count in sums.accepted_by_tier.items():
            yield Sample(m.ACCEPTED_OF, count, (_name(self._tiers, tier),))
        for outcome, count in sums.ahead.items():
            yield Sample(m.OVERLAPS, count, (outcome,))
        for part, seconds in (("draft", sums.draft_s), ("verify", sums.verify_s), ("wait", sums.wait_s)):
            yield Sample(m.ROUND_SECONDS, seconds, (part,))
        for metric, by_pool in ((m.CACHE_QUERIES, sums.prompts_by_pool), (m.CACHE_HITS, sums.cached_by_pool)):
            for pool, count in by_pool.items():
                yield Sample(metric, count, (_name(self._pools, pool),))
        for key, count in sums.degraded.items():
            where, _, reason = key.partition(":")
            yield Sample(m.DEGRADED, count, (_name(self._pools, int(where.removeprefix("tier"))), reason))
        yield from self._shares(sums)

    def _shares(self, sums: Totals) -> Iterator[Sample]:
        shares = self._window.look(sums, self.clock())
        found = {
            m.ACCEPTANCE_RATE: shares.acceptance_rate, m.ACCEPTANCE_LENGTH: shares.acceptance_length,
            m.DRAFT_LENGTH: shares.draft_length, m.DRAFT_OVERHEAD: shares.draft_overhead,
            m.OVERLAP_HITS: shares.overlap_hit_rate, m.TOKENS_PER_S: shares.tokens_per_s,
        }
        for metric, value in found.items():
            if value is not None:
                yield Sample(metric, value)


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else str(index)

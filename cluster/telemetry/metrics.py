"""What a metric is, and every metric there is. Names follow the field's, with `outrider_` before them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What its values mean."""

    COUNTER = "counter"  # only grows while its process lives; the name ends in _total
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """Name, meaning, and the labels that tell its series apart within one process."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values of a histogram."""

    bounds: tuple[float, ...]  # upper, inclusive, ascending
    counts: tuple[int, ...]  # [len(bounds) + 1] values of each bucket; the last one: above all bounds
    total: float  # sum of the values

    @property
    def cumulative(self) -> list[tuple[str, int]]:
        """(`le`, values up to it), the last one "+Inf"."""
        seen, found = 0, []
        for bound, count in zip([*map(repr, self.bounds), "+Inf"], self.counts, strict=True):
            seen += count
            found.append((bound, seen))
        return found


@dataclass(frozen=True, slots=True)
class Sample:
    """One series at one moment."""

    metric: Metric
    value: float | Distribution
    labels: tuple[str, ...] = ()  # values of `metric.labels`


@dataclass(frozen=True, slots=True)
class Report:
    """What one process counts."""

    source: tuple[tuple[str, str], ...]  # labels of all its series, e.g. (("model_name", "x"), ("replica", "a#1"))
    samples: tuple[Sample, ...]


def counter(name: str, help: str, *labels: str) -> Metric:
    """A counter."""
    return Metric(f"outrider_{name}_total", Kind.COUNTER, help, labels)


def gauge(name: str, help: str, *labels: str) -> Metric:
    """A gauge."""
    return Metric(f"outrider_{name}", Kind.GAUGE, help, labels)


def histogram(name: str, help: str) -> Metric:
    """A histogram."""
    return Metric(f"outrider_{name}", Kind.HISTOGRAM, help)


# Of an ingress replica: requests
RUNNING = gauge("num_requests_running", "Requests that generate.")
WAITING = gauge("num_requests_waiting", "Requests that wait for their turn.")
MAX_RUNNING = gauge("max_requests_running", "Requests that may generate at once.")
MAX_WAITING = gauge("max_requests_waiting", "Requests that may wait; more are refused.")
REQUESTS = counter("requests", "Requests that ended, by how: a finish reason or a status.", "outcome")
PROMPT_TOKENS = counter("prompt_tokens", "Prompt tokens of requests that were taken.")
GENERATION_TOKENS = counter("generation_tokens", "Tokens committed.")
TTFT = histogram("time_to_first_token_seconds", "From a request's arrival to its first token, queue included.")
INTER_TOKEN = histogram(
    "inter_token_latency_seconds",
    "Between tokens of a stream; those committed together share the time since the ones before.",
)
E2E_LATENCY = histogram("e2e_request_latency_seconds", "From a request's arrival to its end.")
QUEUE_TIME = histogram("request_queue_time_seconds", "From a request's arrival to its turn.")

# Of an ingress replica: speculation. Only committed tokens count as accepted.
ROUNDS = counter("spec_decode_num_rounds", "Verify passes of the target that committed something, plain ones included.")
DRAFTS = counter("spec_decode_num_drafts", "Of these, passes that checked a draft.")
DRAFT_TOKENS = counter("spec_decode_num_draft_tokens", "Draft tokens that the target checked.")
ACCEPTED_TOKENS = counter("spec_decode_num_accepted_tokens", "Of these, committed.")
ACCEPTED_AT = counter("spec_decode_num_accepted_tokens_per_pos", "Accepted, by position in the draft.", "position")
DRAFTED_AT = counter("spec_decode_num_draft_tokens_per_pos", "Drafts that reached a position.", "position")
ACCEPTED_OF = counter("spec_decode_num_accepted_tokens_per_tier", "Accepted, by the tier that proposed them.", "tier")
RECOVERED = counter("spec_decode_num_recovered_tokens", "Put by the target where a draft token was rejected.")
BONUS = counter("spec_decode_num_bonus_tokens", "Added by the target after a fully accepted draft.")
ROLLED_BACK = counter("spec_decode_num_rolled_back_tokens", "Draft tokens that were checked and not committed.")
RELAXED = counter("spec_decode_num_relaxed_tokens", "Accepted by a lossy policy alone.")
OVERLAPS = counter("spec_decode_overlaps", "Rounds whose outcomes were drafted for, by what came of it.", "outcome")
ROUND_SECONDS = counter(
    "spec_decode_round_seconds", "Wall time of rounds: below the target, in the target, and the rest.", "part"
)
LEASE_SECONDS = counter("lease_seconds", "Time before requests' first rounds, until replicas were leased.")
CONTROL_SECONDS = counter(
    "spec_decode_control_seconds", "Wall time of rounds while no forward pass ran that they waited for."
)
CACHE_QUERIES = counter("prefix_cache_queries", "Prompt tokens that a tier was asked for.", "tier")
CACHE_HITS = counter("prefix_cache_hits", "Of these, found in its prefix cache.", "tier")
DEGRADED = counter("degraded", "Times that a tier did not serve a request, which went on without.", "tier", "reason")
DEGRADED_STEPS = counter("degraded_steps", "Plain steps taken although a draft was wanted.")
DEGRADED_REQUESTS = counter("degraded_requests", "Requests that met any of these.")
LEASE_MOVES = counter("lease_moves", "Times that a request's lease was replaced.")

# Of an ingress replica: the same over the last minute, for whoever has no PromQL
ACCEPTANCE_RATE = gauge("spec_decode_acceptance_rate", "Accepted of drafted tokens, last minute.")
ACCEPTANCE_LENGTH = gauge("spec_decode_acceptance_length", "Committed tokens per round (MAT), last minute.")
DRAFT_LENGTH = gauge("spec_decode_draft_length", "Tokens per checked draft, last minute.")
DRAFT_OVERHEAD = gauge("spec_decode_draft_overhead", "Share of rounds' time spent below the target, last minute.")
OVERLAP_HITS = gauge("spec_decode_overlap_hit_rate", "Share of overlapped rounds that hit, last minute.")
TOKENS_PER_S = gauge("generation_tokens_per_second", "Tokens committed per second, last minute.")

# Of a pool's replica
KV_USAGE = gauge("kv_cache_usage_ratio", "Share of KV pages that sequences hold; cached prefixes count as free.")
KV_CACHED = gauge("kv_cache_cached_ratio", "Share of KV pages that hold a prefix that is kept for later.")
SEQUENCES = gauge("num_sequences", "Sequences that the replica holds.")
LEASES = gauge("num_leases", "Leases that the replica has given.")
MAX_LEASES = gauge("max_leases", "Leases that the replica can give.")
ACTIVE_CALLS = gauge("num_active_calls", "Calls that take part in steps or wait for pages.")
QUEUE_DEPTH = gauge("num_waiting_calls", "Calls that wait to be taken up.")
PREEMPTIONS = counter("num_preemptions", "Sequences whose pages were taken for others.")
REFUSED_CALLS = counter("num_refused_calls", "Calls refused for want of room.")
STEPS = counter("engine_steps", "Forward passes.")
ROWS = counter("engine_rows", "Rows of these passes.")
FORWARD_SECONDS = counter("engine_forward_seconds", "Time in these passes.")

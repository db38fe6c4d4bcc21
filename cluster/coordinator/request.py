"""What goes into the coordinator and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from actors.messages import Ids, Origin, TokenLogprobs
from actors.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request, in token ids. Raises `ValueError` for settings that cannot be served."""

    request_id: str  # also the sequence id in every tier
    prompt_ids: Ids  # [num_prompt_tokens], at least one
    sampling: SamplingParams
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()  # end-of-sequence and stop ids; empty when they are to be ignored
    lookahead: int | None = 0  # draft tokens asked for in a round (k); 0: no speculation; None: the controller's choice
    deadline: float | None = None  # on the coordinator's clock, seconds

    def __post_init__(self) -> None:
        if len(self.prompt_ids) == 0:
            raise ValueError("the prompt has no tokens: send at least one")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}: ask for at least 1 token")
        if self.lookahead is not None and self.lookahead < 0:
            raise ValueError(f"lookahead is {self.lookahead}: use 0 to turn speculation off")
        object.__setattr__(self, "prompt_ids", np.asarray(self.prompt_ids, np.int32))


class FinishReason(StrEnum):
    """Why a stream ended."""

    LENGTH = "length"
    STOP = "stop"  # a stop id was committed
    DEADLINE = "deadline"
    ERROR = "error"  # carried by `GenerationFailed.finish` only


class AheadOutcome(StrEnum):
    """What became of an enumeration of a verify pass's outcomes."""

    HIT = "hit"  # the target went on with one of its branches
    MISS = "miss"  # it had none that fits
    LATE = "late"  # the verdict was there before it
    FAILED = "failed"  # there was none


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """The tokens one round committed, in order; never empty."""

    token_ids: Ids  # [num_tokens]
    origins: tuple[Origin, ...]  # [num_tokens]
    tiers: tuple[int, ...]  # [num_tokens] the tier that proposed (accepted) or decided (else) each token
    logprobs: tuple[TokenLogprobs, ...] | None = None  # [num_tokens] when asked for
    ends_with_stop: bool = False  # the last token is a stop id: counted, not to be printed


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; a committed stop id counts."""

    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int = 0  # of the prompt, found in the target's prefix cache when it was first opened


@dataclass(frozen=True, slots=True)
class SpeculationFigures:
    """What speculation did for one request. Only committed tokens count as accepted."""

    rounds: int = 0  # verify passes of the target that committed something
    committed: int = 0  # tokens
    drafted: int = 0  # draft tokens the target checked; 0 means that nothing was ever speculated
    accepted: int = 0  # of those, committed
    recovered: int = 0  # committed where the first rejected draft token stood
    bonus: int = 0  # committed after a fully accepted draft
    relaxed: int = 0  # of the accepted: kept by a lossy policy alone; what a stop cut off behind them included
    drafted_at: tuple[int, ...] = ()  # [longest draft] drafts that reached each position
    accepted_at: tuple[int, ...] = ()  # [longest draft] of those, accepted and committed
    accepted_by_tier: Mapping[int, int] = field(default_factory=dict)
    lease_s: float = 0.0  # before the first round: until replicas were leased
    draft_s: float = 0.0  # below the target, queues included
    verify_s: float = 0.0  # in the target, queue included
    wait_s: float = 0.0  # the rest of the rounds' wall time: hops, new leases, timeouts
    model_s: float = 0.0  # of the rounds' wall time: while a replica that worked for it, or was to, ran a forward pass
    control_s: float = 0.0  # the rest of it: hops, bookkeeping, new leases
    control_round_p50_s: float = 0.0  # median of that rest over the rounds
    cached_by_tier: Mapping[int, int] = field(default_factory=dict)  # prompt tokens found in a tier's prefix cache
    ahead: Mapping[str, int] = field(default_factory=dict)  # what became of enumerations ("hit", ...) -> times
    degraded_steps: int = 0  # plain steps taken although a draft was wanted
    degraded: Mapping[str, int] = field(default_factory=dict)  # "tier<i>:<reason>" -> times
    lease_moves: int = 0  # times a tier's lease was replaced

    @property
    def mean_accepted_tokens(self) -> float:
        """MAT: mean committed tokens per round (0 when no round ended)."""
        return self.committed / self.rounds if self.rounds else 0.0

    @property
    def overlap_hit_rate(self) -> float | None:
        """Share of the enumerated rounds whose outcome was among the branches; None when none was enumerated."""
        enumerated = sum(self.ahead.values())
        return self.ahead.get("hit", 0) / enumerated if enumerated else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; None when nothing was drafted (inconclusive, not a pass)."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True, slots=True)
class Finish:
    """The last item of a stream."""

    reason: FinishReason
    usage: Usage
    figures: SpeculationFigures
    stop_id: int | None = None  # the matched id when `reason` is STOP

"""One request of a load and its outcome: what crosses between the bench and its client process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OK = "OK"
LEFT = "LEFT"  # the client itself cancelled, as it was told to
LOST = "LOST"  # neither a finish nor a status: must never happen


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Exactly one of `turns` (role, content) and `token_ids` is set."""

    name: str  # what sort of request it is, for grouping
    turns: tuple[tuple[str, str], ...] = ()
    token_ids: tuple[int, ...] = ()
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    speculation: bool = True
    lookahead: int | None = None  # None: the server's choice
    timeout_s: float = 600.0
    at_s: float = 0.0  # open loop: when it is sent, after the start
    leave_after_tokens: int | None = None  # the client cancels once it has so many


@dataclass(frozen=True, slots=True)
class Figures:
    """What the service said of a finished request (`Finish` of the proto)."""

    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    target_cached_tokens: int | None = None  # prompt tokens found in the target's cache; None: not reported
    cached_tokens: Mapping[int, int] = field(default_factory=dict)  # the same by tier, where reported
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_recovered: int = 0
    accepted_by_tier: Mapping[int, int] = field(default_factory=dict)
    overlapped: Mapping[str, int] = field(default_factory=dict)  # rounds by what became of drafts for their outcomes
    model_s: float = 0.0
    control_s: float = 0.0
    control_round_p50_s: float = 0.0
    lease_s: float = 0.0
    num_degraded: int = 0
    num_lease_moves: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request. Times are seconds on the machine's monotonic clock."""

    ask: Ask
    due_s: float  # when it should have been sent: an overdue client must not hide the wait
    end_s: float
    status: str  # OK, LEFT, LOST, or the name of a gRPC status
    times_s: tuple[float, ...] = ()  # of each chunk with tokens
    counts: tuple[int, ...] = ()  # its tokens
    text: str = ""
    figures: Figures | None = None  # when OK
    detail: str = ""  # of a status: its sentence

    @property
    def num_tokens(self) -> int:
        """Tokens that arrived."""
        return sum(self.counts)

    @property
    def first_token_s(self) -> float | None:
        """Time to first token, counted from when it was due."""
        return self.times_s[0] - self.due_s if self.times_s else None

    @property
    def token_interval_s(self) -> float | None:
        """Mean time per token after the first chunk; None if there was but one chunk."""
        if len(self.times_s) < 2:
            return None
        return (self.times_s[-1] - self.times_s[0]) / sum(self.counts[1:])

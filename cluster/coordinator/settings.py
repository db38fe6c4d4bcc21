"""Bounds of the coordinator: how long it waits for whom, and how it backs off."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Every wait of the coordinator has a bound here. All times are in seconds."""

    draft_timeout_s: float = 1.0  # a draft (or a middle tier's pass) later than this is not waited for
    catch_up_token_s: float = 0.05  # added to it for every token of context sent: a prefill takes longer
    verify_timeout_s: float = 300.0  # a target pass longer than this counts as a lost replica
    target_wait_s: float = 30.0  # how long a sequence may stand without a target replica
    max_target_moves: int = 4  # target replicas a request may lose before it fails
    lease_grace_s: float = 0.05  # how long one round waits for a new lease of a lower tier
    backoff_s: float = 0.1  # between failures of a tier: doubles each time, the first retry is immediate
    backoff_max_s: float = 10.0
    avoid_lost_s: float = 60.0  # a replica that died or drains is not leased again for this long
    avoid_slow_s: float = 2.0  # a replica that was late or answered an error
    release_timeout_s: float = 10.0  # how long the end of a request waits for its leases to go back

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise ValueError(f"coordinator setting {name} is negative: set it to 0 or more")

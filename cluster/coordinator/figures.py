"""Counts what speculation did for one request, and logs every loss of service once."""

from __future__ import annotations

import logging
from collections import Counter
from statistics import median

from actors.messages import Origin, Verdict
from cluster.coordinator.request import AheadOutcome, SpeculationFigures, TokenEvent

logger = logging.getLogger(__name__)


class FigureCounter:
    """Mutable twin of `SpeculationFigures`."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._origins: Counter[Origin] = Counter()
        self._tiers: Counter[int] = Counter()
        self._drafted_at: list[int] = []
        self._accepted_at: list[int] = []
        self._degraded: Counter[str] = Counter()
        self._draft_s = self._verify_s = self._wait_s = self._model_s = 0.0
        self._control_s: list[float] = []  # of each round
        self._cached: dict[int, int] = {}
        self._ahead: Counter[AheadOutcome] = Counter()
        self._rounds = 0
        self._drafted = 0
        self._relaxed = 0
        self.lease_s = 0.0
        self.degraded_steps = 0
        self.lease_moves = 0

    def end_round(self, verdict: Verdict, event: TokenEvent) -> None:
        """A round was committed, and the next one begins now: before its first call, `count_round` after that."""

    def count_round(self, verdict: Verdict, event: TokenEvent, wall_s: float) -> None:
        """Add a committed round: `event` is what was left of `verdict` after the cut."""
        num_passes = max(1, len(event.token_ids) - verdict.num_accepted)  # each of a run's plain tokens is a round
        self._rounds += num_passes
        self._drafted += verdict.num_draft
        self._relaxed += verdict.num_relaxed
        num_positions = verdict.num_draft
        if verdict.path is not None:  # of a tree only the levels that were looked at
            num_positions = verdict.num_accepted + (verdict.last is Origin.RECOVERED)
        grow = num_positions - len(self._drafted_at)
        self._drafted_at += [0] * grow
        self._accepted_at += [0] * grow
        for position in range(num_positions):
            self._drafted_at[position] += 1
        for position, (origin, tier) in enumerate(zip(event.origins, event.tiers, strict=True)):
            self._origins[origin] += 1
            if origin is Origin.ACCEPTED:
                self._accepted_at[position] += 1
                self._tiers[tier] += 1
        self._draft_s += verdict.draft_seconds
        self._verify_s += verdict.verify_seconds
        self._wait_s += max(0.0, wall_s - verdict.draft_seconds - verdict.verify_seconds)
        model_s = verdict.draft_model_seconds + verdict.verify_model_seconds
        self._model_s += model_s
        self._control_s += [max(0.0, wall_s - model_s) / num_passes] * num_passes

    def count_ahead(self, outcome: AheadOutcome) -> None:
        """What became of an enumeration."""
        self._ahead[outcome] += 1

    def note_cached(self, tier: int, num_tokens: int) -> None:
        """Prompt tokens that a tier held when it first met the sequence; later leases change nothing."""
        self._cached.setdefault(tier, num_tokens)

    def knows_cached(self, tier: int) -> bool:
        """Whether a tier has met the sequence."""
        return tier in self._cached

    def degrade(
        self, tier: int, reason: str, replica_id: str | None = None, detail: str | None = None
    ) -> None:
        """A tier did not serve. `detail` must hold no token ids and no text."""
        self._degraded[f"tier{tier}:{reason}"] += 1
        logger.warning(
            "tier %d degraded: %s", tier, reason,
            extra={
                "request_id": self._request_id, "tier": tier, "reason": reason,
                "replica_id": replica_id, "detail": detail,
            },
        )

    def count_asleep(self, tier: int) -> None:
        """A round went without a tier whose pool was scaled to none: by choice, so nothing to warn of."""
        reason = f"tier{tier}:asleep"
        if reason not in self._degraded:
            logger.info("tier %d is asleep: rounds go on without it until it has woken up", tier, extra={
                "request_id": self._request_id, "tier": tier, "reason": "asleep"})
        self._degraded[reason] += 1

    def snapshot(self) -> SpeculationFigures:
        """The figures so far, frozen."""
        origins = self._origins
        return SpeculationFigures(
            rounds=self._rounds, committed=origins.total(), drafted=self._drafted,
            accepted=origins[Origin.ACCEPTED], recovered=origins[Origin.RECOVERED],
            bonus=origins[Origin.BONUS], relaxed=self._relaxed,
            drafted_at=tuple(self._drafted_at), accepted_at=tuple(self._accepted_at),
            accepted_by_tier=dict(self._tiers),
            lease_s=self.lease_s, draft_s=self._draft_s, verify_s=self._verify_s, wait_s=self._wait_s,
            model_s=self._model_s, control_s=sum(self._control_s),
            control_round_p50_s=median(self._control_s) if self._control_s else 0.0,
            cached_by_tier=dict(self._cached),
            ahead={outcome.value: count for outcome, count in self._ahead.items()},
            degraded_steps=self.degraded_steps, degraded=dict(self._degraded), lease_moves=self.lease_moves,
        )

"""Who decides how a sequence's rounds are made: the controller, or one fixed plan."""

from __future__ import annotations

from typing import Any, Protocol

from actors.messages import AheadPlan, DraftShape
from cluster.coordinator.control.plan import PLAIN, Reason, RoundPlan, RoundReport
from cluster.coordinator.settings import CoordinatorSettings


class Planner(Protocol):
    """Plans rounds, and is told how they went. `Any` is what it keeps of a sequence."""

    def open(self, kind: str = "", max_lookahead: int | None = None) -> Any:
        """A new sequence."""

    def leased(self, sequence: Any, tier: int, replica_id: str | None) -> None:
        """The sequence holds this replica of a tier from now on; None: it holds none."""

    def close(self, sequence: Any) -> None:
        """The sequence has ended."""

    def plan(self, sequence: Any, now: float, remaining: int, max_total_tokens: int) -> RoundPlan:
        """The next round's plan; `remaining` tokens may still be committed."""

    def observe(self, sequence: Any, report: RoundReport, now: float) -> None:
        """How a round went."""


class FixedPlanner:
    """The same plan for every round: k tokens from tier 0, verified by each tier in turn."""

    def __init__(self, lookahead: int, num_tiers: int, windows: tuple[int, ...], settings: CoordinatorSettings) -> None:
        """`lookahead` 0: plain steps. Trees and overlap as `settings` say."""
        self._lookahead = lookahead
        self._rungs = tuple(range(num_tiers - 1)) if lookahead else ()
        self._windows = windows
        self._settings = settings

    def open(self, kind: str = "", max_lookahead: int | None = None) -> None:
        """Nothing is kept."""

    def leased(self, sequence: None, tier: int, replica_id: str | None) -> None:
        """The plan does not depend on it."""

    def close(self, sequence: None) -> None:
        """Nothing is kept."""

    def plan(self, sequence: None, now: float, remaining: int, max_total_tokens: int) -> RoundPlan:
        """The one plan, as far as there is room for it."""
        if not self._rungs or remaining < 2:
            return PLAIN
        k = min(self._lookahead, remaining - 1)
        overlap, ahead = self._settings.overlap, None
        if overlap is not None and len(self._rungs) == 1:
            shape = DraftShape(overlap.num_tokens, siblings=overlap.siblings)
            ahead = AheadPlan(shape, overlap.num_branches, overlap.num_guesses, max_total_tokens, float("inf"))
        return RoundPlan(self._rungs, k, self._windows, self._shape(k), ahead, k, Reason.FIXED)

    def _shape(self, k: int) -> DraftShape:
        if len(self._rungs) > 1:  # pieces of middle tiers are joined, and only chains can be
            return DraftShape(k)
        return self._settings.shape(k)

    def observe(self, sequence: None, report: RoundReport, now: float) -> None:
        """Nothing is learned."""

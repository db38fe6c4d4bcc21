"""The ladder: a fold over tiers in which each verdict is the next tier's draft.

Tier 0 proposes k tokens. Each middle tier verifies rounds of the tier below until it has collected its
window, then the tier above verifies the concatenation. This is cascaded speculative decoding (Chen et
al. 2024, "Cascade Speculative Drafting", sections 3-4, in its sequential form), exact because a verdict's
tokens are distributed as its tier's model. When to stop collecting is decided before the next token is
drawn, and collected pieces are never shortened: that is what keeps the law.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from cluster.coordinator.control.planner import FixedPlanner, Planner
from cluster.coordinator.demand import Demand
from cluster.coordinator.pace import Pace
from cluster.coordinator.request import GenerationRequest
from cluster.coordinator.runs import OpenRequests
from cluster.coordinator.settings import CoordinatorSettings
from cluster.coordinator.tier import Tier


def _never(index: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Ladder:
    """The tiers of one service, from the cheapest to the target, shared by all requests.

    `windows[i]` is how many verified tokens middle tier `i + 1` collects before the next tier runs.
    """

    tiers: Seq[Tier]
    windows: Seq[int] = ()
    settings: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    controller: Planner | None = None  # for requests that leave the lookahead to it
    target_drafts: bool = False  # the target has tiers inline: it drafts for itself
    sends_features: bool = False  # tier 0 drafts from the target's features (`Courier`), in a pool of its own
    feature_window: int = 0  # so many positions of them before the newest token; 0: all
    pace: Pace = field(default_factory=Pace)
    open_requests: OpenRequests = field(default_factory=OpenRequests)
    demand: Demand = field(default_factory=Demand)
    is_asleep: Callable[[int], bool] = _never  # whether a tier's pool was scaled to none

    def __post_init__(self) -> None:
        num_middle = max(0, len(self.tiers) - 2)
        if not self.tiers:
            raise ValueError("the ladder has no tiers: give at least the target")
        if len(self.windows) != num_middle:
            raise ValueError(
                f"{len(self.tiers)} tiers need {num_middle} windows (one per middle tier), "
                f"not {len(self.windows)}"
            )
        if any(window < 1 for window in self.windows):
            raise ValueError(f"windows {tuple(self.windows)} must all be at least 1 token")

    def planner(self, request: GenerationRequest) -> Planner:
        """Who plans the rounds of a request. Raises `ValueError` when it asks for a controller that is not there."""
        if request.lookahead is None:
            if self.controller is None:
                raise ValueError("the request leaves the lookahead to a controller, and there is none: give a number")
            return self.controller
        return FixedPlanner(request.lookahead, len(self.tiers), tuple(self.windows), self.settings)

"""What the controller may choose, what it chose for a round, and what it is told of how the round went."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from actors.messages import AheadPlan, DraftShape


class TreeKind(StrEnum):
    """Whether drafts may branch."""

    NONE = "none"
    STATIC = "static"  # the same number of children for all nodes of a level
    DYNAMIC = "dynamic"  # grown where the drafter is sure


class Reason(StrEnum):
    """Why a plan is as it is; for figures and logs."""

    COLD = "cold"  # nothing is known of the costs yet: rules of thumb
    MODEL = "model"  # the best by the goodput model
    REACH = "reach"  # the model wants more rows than were ever seen in a pass: a step towards it
    TRIAL = "trial"  # another k for one round of all sequences: it may be as good, and its cost is hardly known
    PROBE = "probe"  # speculation does not pay; a short draft tells whether that is still so
    FIXED = "fixed"  # as the request or the configuration says
    PLAIN = "plain"  # speculation does not pay, or there is no room for a draft


@dataclass(frozen=True, slots=True)
class ControlLimits:
    """The bounds of every plan."""

    num_tiers: int = 2  # target included
    max_lookahead: int = 16  # longest path of a draft, and largest window of a middle tier, tokens
    max_branches: int = 0  # outcomes drafted ahead; 0: rounds never overlap
    max_guesses: int = 3  # of the verifier's own token, per number of accepted tokens
    max_pass_rows: int = 2048  # of all sequences in one pass of any tier
    trees: TreeKind = TreeKind.NONE
    max_tree_nodes: int = 32

    def __post_init__(self) -> None:
        for name in ("num_tiers", "max_lookahead", "max_guesses", "max_pass_rows", "max_tree_nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"control limit {name} is {getattr(self, name)}: set it to 1 or more")
        if self.max_branches < 0:
            raise ValueError(f"control limit max_branches is {self.max_branches}: set it to 0 (no overlap) or more")


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One round of one sequence. A plain step has no rungs, no shape and k = 0."""

    rungs: tuple[int, ...] = ()  # tiers used below the target, ascending: () plain, (0, 1) all of three tiers
    k: int = 0  # tokens that the lowest rung proposes when no draft is in hand (longest path of a tree)
    windows: tuple[int, ...] = ()  # [len(rungs) - 1] verified tokens that each rung above the lowest collects
    shape: DraftShape | None = None  # of those k tokens
    ahead: AheadPlan | None = None  # what to draft while the target verifies; None: the round does not overlap
    k_after_miss: int = 0  # drafted, and waited for, when no branch fitted; 0: a plain step at once
    reason: Reason = Reason.PLAIN

    @property
    def is_plain(self) -> bool:
        """Whether only the target works in this round: no call goes to any other pool."""
        return not self.rungs


PLAIN = RoundPlan()


@dataclass(frozen=True, slots=True)
class Check:
    """A verdict on a draft: `num_accepted` of `num_draft` tokens.

    Of a tree both count along its first children only, as if that chain had been the draft; `tree_accepted` is the
    length of the path that was really accepted.
    """

    lower: int  # tier that proposed
    upper: int  # tier that decided
    num_draft: int
    num_accepted: int
    tree_accepted: int | None = None  # None: a chain


@dataclass(frozen=True, slots=True)
class Pass:
    """The last forward pass that a call took part in, with the rows of all sequences in it."""

    tier: int
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class AheadOutcome:
    """What became of the drafts for a round's outcomes."""

    hit: bool
    seconds: float = 0.0  # wall time of the enumeration; 0: not known
    depth: int = 0  # tokens of its longest branch; 0: not known


@dataclass(frozen=True, slots=True)
class RoundReport:
    """How a round went. Times are wall seconds; what did not happen is left at 0 or empty."""

    plan: RoundPlan
    round_s: float
    checks: tuple[Check, ...] = ()  # every verdict on a draft of at least one token, of all tiers
    passes: tuple[Pass, ...] = ()  # at most one per call
    below_s: float = 0.0  # that the target's draft took: `Draft.seconds`, or of all rungs together
    below_model_s: float = 0.0  # of it, inside forward passes
    verify_s: float = 0.0  # `Verdict.verify_seconds` of the target
    verify_model_s: float = 0.0
    ahead: AheadOutcome | None = None  # None: nothing was enumerated for this round's outcomes
    used_branch: bool = False  # the draft verified in this round was a branch drafted ahead

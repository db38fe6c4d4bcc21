"""Bounds of the coordinator: how long it waits for whom, and how it backs off."""

from __future__ import annotations

from dataclasses import dataclass

from actors.messages import DraftShape


@dataclass(frozen=True, slots=True)
class OverlapSettings:
    """Drafting for the outcomes of the target's pass while it is under way."""

    num_branches: int = 16  # outcomes drafted for at most
    num_guesses: int = 2  # of the target's own token, for one number of accepted tokens
    num_tokens: int = 8  # of each branch
    siblings: int = 0  # beside each of these, if the branches are combs

    def __post_init__(self) -> None:
        for name in ("num_branches", "num_guesses", "num_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"overlap setting {name} is {getattr(self, name)}: set it to 1 or more")


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """Drafts that branch: of a static shape, grown where the drafter is sure, or chains with siblings (combs)."""

    widths: tuple[int, ...] = ()  # children per node of each level; () for a dynamic tree
    num_nodes: int = 0  # of a dynamic tree
    siblings: int = 0  # of each token of a comb

    def __post_init__(self) -> None:
        if sum(map(bool, (self.widths, self.num_nodes, self.siblings))) != 1:
            raise ValueError("a tree is static (widths), dynamic (num_nodes) or a comb (siblings): give one of them")
        if any(width < 1 for width in self.widths) or self.num_nodes < 0 or self.siblings < 0:
            raise ValueError(f"widths {self.widths}, num_nodes {self.num_nodes} and siblings {self.siblings} must "
                             "be at least 1 where they are given")


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

    plain_tokens: int = 4  # that the target may decode by itself in one call, where many requests run

    overlap: OverlapSettings | None = None  # None: rounds are synchronous
    tree: TreeSettings | None = None  # None: drafts are chains

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and value < 0:
                raise ValueError(f"coordinator setting {name} is negative: set it to 0 or more")
        if self.plain_tokens < 1:
            raise ValueError(f"coordinator setting plain_tokens is {self.plain_tokens}: set it to 1 or more")

    def shape(self, lookahead: int) -> DraftShape:
        """Of a draft with no path longer than `lookahead`."""
        tree = self.tree
        if tree is None:
            return DraftShape(lookahead)
        depth = min(lookahead, len(tree.widths)) if tree.widths else lookahead
        return DraftShape(depth, tree.num_nodes, tree.widths[:lookahead], tree.siblings)

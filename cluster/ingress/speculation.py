"""The coordinator's settings of a service, from its configuration."""

from __future__ import annotations

import itertools
import operator

from cluster.config import Config
from cluster.coordinator.control.controller import Controller
from cluster.coordinator.control.plan import ControlLimits, TreeKind
from cluster.coordinator.settings import CoordinatorSettings, OverlapSettings, TreeSettings

COLD_LOOKAHEAD = 5  # what the controller begins with (rule of thumb for an acceptance that is not known)


def coordinator_settings(config: Config) -> CoordinatorSettings:
    """Bounds, overlap and trees."""
    speculation = config.speculation
    overlap, tree = speculation.overlap, speculation.tree
    return CoordinatorSettings(
        draft_timeout_s=speculation.draft_timeout_s, target_wait_s=config.limits.lease_timeout_s,
        plain_tokens=speculation.plain_tokens,
        overlap=None if overlap is None else OverlapSettings(
            overlap.branches, overlap.guesses, overlap.tokens, overlap.siblings
        ),
        tree=None if tree is None else TreeSettings(tree.widths, tree.nodes, tree.siblings),
    )


def controller(config: Config, num_tiers: int) -> Controller | None:
    """What chooses the lookahead of `num_tiers` pools; None when it is configured as a number."""
    speculation = config.speculation
    if speculation.lookahead != "auto" or num_tiers < 2:
        return None
    overlap, tree = speculation.overlap, speculation.tree
    num_nodes = 1 if tree is None else tree.nodes or sum(itertools.accumulate(tree.widths, operator.mul))
    trees = TreeKind.NONE if tree is None else TreeKind.STATIC if tree.widths else TreeKind.DYNAMIC
    return Controller(ControlLimits(
        num_tiers=num_tiers, max_lookahead=speculation.max_lookahead,
        max_branches=0 if overlap is None else overlap.branches,
        max_guesses=1 if overlap is None else overlap.guesses,
        trees=trees, max_tree_nodes=num_nodes,
    ))

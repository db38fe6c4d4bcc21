"""Whether a ladder can overlap its rounds, or draft trees, as it is asked to: nothing is left out in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.config import Config


def check_ahead(config: Config) -> None:
    """Raises ValueError with one line."""
    speculation, pools = config.speculation, config.processes
    for name, wanted in (("overlap", speculation.overlap), ("tree", speculation.tree)):
        if wanted is None:
            continue
        if len(pools) == 1 and (name == "overlap" or len(config.tiers) == 1):
            raise ValueError(
                f"speculation.{name}: there is no draft pool beside the target's; add one or remove {name}"
            )
        if len(pools) > 2 and speculation.lookahead != "auto":
            raise ValueError(
                f"speculation.{name}: rounds of {len(pools)} pools take turns, over chains; put the lower tiers "
                f"inline, set lookahead: auto, or remove {name}"
            )
    if config.sends_features:
        kind = config.tiers[0].drafter.kind if config.tiers[0].drafter is not None else ""
        if speculation.overlap is not None:
            raise ValueError(f"speculation.overlap: {kind} drafts from the features of each verified round, and cannot "
                             "draft ahead of them; remove overlap")
        if len(pools) > 2:
            raise ValueError(f"tiers.0.drafter: {kind} drafts from the target's features, and the tier above it is not "
                             "the target; remove the tiers between, or put them inline")
    if speculation.overlap is not None and len(pools[-1]) > 1:
        raise ValueError(
            "speculation.overlap: a target with tiers inline verifies other drafts than those that came; remove "
            "overlap, or inline from the tiers below the target"
        )
    if speculation.lookahead == "auto":
        for name, siblings in (("tree", speculation.tree), ("overlap", speculation.overlap)):
            if siblings is not None and siblings.siblings:
                raise ValueError(
                    f"speculation.{name}.siblings: the controller plans no combs; remove siblings, or set lookahead "
                    "to a number"
                )
    lowest = config.tiers[pools[0][-1]]
    if speculation.tree is not None:
        if len(pools[0]) > (2 if config.target_drafts else 1):
            raise ValueError(f"speculation.tree: {lowest.name!r} has tiers inline and drafts chains; remove tree")
        drafter = config.tiers[0].drafter
        if drafter is not None and not drafter.may_branch:
            other = " in another tokenizer's ids" if drafter.drafts_trees else ""
            raise ValueError(f"speculation.tree: drafter {drafter.kind} drafts chains{other}; remove tree")

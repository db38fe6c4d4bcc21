"""What the configuration makes of rounds."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.config import Config, load_config
from cluster.ingress.speculation import controller, coordinator_settings

TIERS = [{"name": "draft", "model": "builtin:smollm2"}, {"name": "target", "model": "builtin:smollm2"}]


def config(**speculation: Any) -> Config:
    return load_config({"tiers": TIERS, "speculation": speculation}, {})


def test_overlap_and_trees_reach_the_coordinator() -> None:
    settings = coordinator_settings(config(
        overlap={"branches": 9, "guesses": 3, "tokens": 7, "siblings": 1}, tree={"widths": [3, 2]},
    ))
    assert settings.overlap is not None and settings.tree is not None
    assert (settings.overlap.num_branches, settings.overlap.num_guesses) == (9, 3)
    assert (settings.overlap.num_tokens, settings.overlap.siblings) == (7, 1)
    assert settings.tree.widths == (3, 2)


def test_without_them_rounds_take_turns_over_chains() -> None:
    settings = coordinator_settings(config())
    assert settings.overlap is None and settings.tree is None


@pytest.mark.parametrize(("tree", "nodes"), [({"nodes": 12}, 12), ({"widths": [3, 2, 1]}, 15), (None, 1)])
def test_a_controller_may_plan_trees_of_the_configured_size(tree: dict[str, Any] | None, nodes: int) -> None:
    planner = controller(config(lookahead="auto", tree=tree), 2)
    assert planner is not None
    assert planner._limits.max_tree_nodes == nodes


def test_a_number_needs_no_controller_nor_does_a_single_pool() -> None:
    assert controller(config(lookahead=4), 2) is None
    assert controller(config(lookahead="auto"), 1) is None

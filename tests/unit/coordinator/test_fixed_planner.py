"""A fixed plan is the same for every round, as far as there is room."""

from __future__ import annotations

import pytest

from actors.messages import DraftShape
from cluster.coordinator.control.plan import PLAIN
from cluster.coordinator.control.planner import FixedPlanner
from cluster.coordinator.settings import CoordinatorSettings, OverlapSettings, TreeSettings


def planner(lookahead: int, num_tiers: int = 2, windows: tuple[int, ...] = (), **changes: object) -> FixedPlanner:
    return FixedPlanner(lookahead, num_tiers, windows, CoordinatorSettings(**changes))  # type: ignore[arg-type]


def test_no_lookahead_no_lower_tier_and_no_room_are_plain_steps() -> None:
    assert planner(0).plan(None, 0.0, 50, 90) == PLAIN
    assert planner(4, num_tiers=1).plan(None, 0.0, 50, 90) == PLAIN
    assert planner(4).plan(None, 0.0, 1, 90) == PLAIN


@pytest.mark.parametrize(("remaining", "k"), [(50, 4), (5, 4), (4, 3), (2, 1)])
def test_the_target_adds_a_token_so_the_draft_leaves_room_for_it(remaining: int, k: int) -> None:
    plan = planner(4).plan(None, 0.0, remaining, 90)
    assert (plan.k, plan.shape, plan.rungs, plan.ahead) == (k, DraftShape(k), (0,), None)


def test_every_lower_tier_takes_part_with_its_window() -> None:
    plan = planner(4, 4, (6, 8), overlap=OverlapSettings(), tree=TreeSettings(siblings=1)).plan(None, 0.0, 50, 90)
    assert (plan.rungs, plan.windows) == ((0, 1, 2), (6, 8))
    assert plan.shape == DraftShape(4)  # pieces are joined, and only chains can be
    assert plan.ahead is None


def test_an_overlapped_round_has_branches_of_their_own_shape() -> None:
    plan = planner(5, overlap=OverlapSettings(24, 2, 12, siblings=1), tree=TreeSettings(num_nodes=16)).plan(
        None, 0.0, 50, 90
    )
    assert plan.shape == DraftShape(5, num_nodes=16)
    assert plan.ahead is not None
    assert plan.ahead.shape == DraftShape(12, siblings=1)
    assert (plan.ahead.num_branches, plan.ahead.num_guesses, plan.ahead.max_total_tokens) == (24, 2, 90)


def test_a_static_tree_is_no_deeper_than_the_draft() -> None:
    tree = TreeSettings(widths=(3, 2, 1, 1))
    assert planner(2, tree=tree).plan(None, 0.0, 50, 90).shape == DraftShape(2, widths=(3, 2))
    assert planner(9, tree=tree).plan(None, 0.0, 50, 90).shape == DraftShape(4, widths=(3, 2, 1, 1))


@pytest.mark.parametrize("settings", [{}, {"widths": (2,), "num_nodes": 3}, {"widths": (0,)}, {"siblings": -1}])
def test_a_tree_is_of_one_kind(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"give one of them|at least 1"):
        TreeSettings(**settings)  # type: ignore[arg-type]

"""A conversation's plan follows from its index alone, and shares are what they say."""

from __future__ import annotations

from actors.training.data.recipe import Recipe


def test_plans_are_functions_of_seed_and_index() -> None:
    recipe = Recipe(seed=4)
    assert recipe.plan(17) == Recipe(seed=4).plan(17)
    assert recipe.plan(17) != recipe.plan(18) and recipe.plan(17) != Recipe(seed=5).plan(17)
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_shares_are_kept() -> None:
    plans = [Recipe().plan(index) for index in range(4000)]
    for share, wanted in (
        (sum(bool(plan.topic) for plan in plans), 0.4), (sum(bool(plan.opening) for plan in plans), 0.2),
        (sum(plan.num_turns == 2 for plan in plans), 0.2), (sum(plan.held_out for plan in plans), 0.05),
        (sum(plan.answer_temperature == 0 for plan in plans), 0.5),
    ):  # fmt: skip
        assert abs(share / len(plans) - wanted) < 0.03
    assert not any(plan.topic and plan.opening for plan in plans)
    assert len({plan.seed for plan in plans}) == len(plans)

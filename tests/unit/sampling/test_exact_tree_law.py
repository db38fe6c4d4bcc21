"""The law of a round over a tree, computed without sampling error: committed text follows the target alone."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from actors.sampling import tree as tree_module
from actors.sampling.params import SamplingParams
from actors.sampling.processors import process
from tests.unit.sampling.branching import exact_law
from tests.unit.sampling.tables import PROMPT, Drafted, Table, check, joint_law
from tests.unit.sampling.test_exact_law import BLOCK, MODES, REJECTION, SETTINGS, TOLERANCE
from tests.unit.sampling.trees import (
    Children,
    Grower,
    Tree,
    certain,
    check_tree,
    eager,
    one_tree_round,
    repeated,
    static,
    with_replacement,
    without_replacement,
)

pytestmark = pytest.mark.exactness

SHAPES = [(2,), (3,), (1, 2), (2, 1), (2, 2), (3, 1), (1, 1, 2)]


def error_of(run: Callable[[], tuple[int, ...]], target: Table, params: SamplingParams, num_tokens: int = 3) -> float:
    """Largest error in the joint law of `num_tokens` tokens: `run()`'s, continued by the target."""
    start = exact_law(run)
    assert sum(start.values()) == pytest.approx(1.0, abs=1e-9)
    got = joint_law(target, params, num_tokens, start)
    wanted = joint_law(target, params, num_tokens)
    return max(abs(got.get(text, 0.0) - wanted.get(text, 0.0)) for text in {*got, *wanted})


def error_of_round(
    grow: Grower, draft: Table, target: Table, params: SamplingParams, num_tokens: int = 3, support: int = 0
) -> float:
    def run() -> tuple[int, ...]:
        return tuple(one_tree_round(grow, draft, target, params, PROMPT, itertools.count(), support).tokens.tolist())

    return error_of(run, target, params, num_tokens)


@pytest.mark.parametrize("children", [without_replacement, with_replacement])
@pytest.mark.parametrize("widths", SHAPES, ids=str)
def test_a_tree_is_lossless_with_and_without_replacement(widths: tuple[int, ...], children: Children) -> None:
    assert error_of_round(static(widths, children), Table(1, 3), Table(2, 3), BLOCK) < TOLERANCE


@pytest.mark.parametrize("setting", [name for name in SETTINGS if name != "plain"])
@pytest.mark.parametrize("support", [0, 2])
def test_a_tree_is_lossless_under_every_processor(setting: str, support: int) -> None:
    params = replace(REJECTION, **SETTINGS[setting])
    assert error_of_round(static((2, 1)), Table(1, 4), Table(2, 4), params, support=support) < TOLERANCE


@pytest.mark.parametrize("children", [certain, repeated])
@pytest.mark.parametrize("widths", SHAPES, ids=str)
def test_a_tree_of_a_deterministic_drafter_is_lossless(widths: tuple[int, ...], children: Children) -> None:
    assert error_of_round(static(widths, children), Table(9, 4), Table(10, 4), BLOCK, 4) < TOLERANCE


@pytest.mark.parametrize("children", [without_replacement, with_replacement])
def test_a_tree_with_p_equal_to_q_is_lossless_and_always_kept_to_a_leaf(children: Children) -> None:
    model, grow = Table(11, 3), static((2, 2), children)
    assert error_of_round(grow, model, model, BLOCK) < TOLERANCE
    law = exact_law(lambda: one_tree_round(grow, model, model, BLOCK, PROMPT, itertools.count()).path)
    assert sum(mass for path, mass in law.items() if path == (0, 2)) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("target_support", [(3, 4), (2, 3), (1,)])
def test_a_tree_with_disjoint_or_partly_common_supports_is_lossless(target_support: tuple[int, ...]) -> None:
    draft, target = Table(12, 5, support=(0, 1, 2)), Table(13, 5, support=target_support)
    assert error_of_round(static((2, 1)), draft, target, BLOCK) < TOLERANCE


@pytest.mark.parametrize(("draft_size", "target_size"), [(5, 3), (3, 5)])
def test_a_tree_with_differently_padded_vocabularies_is_lossless(draft_size: int, target_size: int) -> None:
    assert error_of_round(static((3,)), Table(18, draft_size), Table(19, target_size), BLOCK) < TOLERANCE


@MODES
@pytest.mark.parametrize("num_nodes", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_a_tree_grown_by_looking_at_what_was_drawn_is_lossless(
    mode: SamplingParams, num_nodes: int, seed: int
) -> None:
    assert error_of_round(eager(num_nodes), Table(50 + seed, 3), Table(60 + seed, 3), mode) < TOLERANCE


def head(tree: Tree, nodes: list[int]) -> Tree:
    """The tree of `nodes`, which are among the first or hold all ancestors."""
    names = {-1: -1} | {node: i for i, node in enumerate(nodes)}
    return Tree(
        tree.prefix, [tree.tokens[i] for i in nodes], [names[tree.parents[i]] for i in nodes],
        [tree.laws[i] for i in nodes],
    )


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_tree_cut_in_drawing_order_or_at_a_depth_settled_before_is_lossless(limit: int) -> None:
    grow = eager(5)

    def first(*how: object) -> Tree:
        tree = grow(*how)  # type: ignore[arg-type]
        return head(tree, list(range(min(limit, len(tree.tokens)))))

    def shallow(*how: object) -> Tree:
        tree = grow(*how)  # type: ignore[arg-type]
        longest = len(PROMPT) + limit
        return head(tree, [i for i in range(len(tree.tokens)) if len(tree.text(i)) <= longest])

    for cut in (first, shallow):
        assert error_of_round(cut, Table(53, 3), Table(63, 3), BLOCK) < TOLERANCE


def chain_or_two(model: Table, params: SamplingParams, prefix: list[int], round_: int, support: int) -> Tree:
    """Two in a row; the first gets a sibling if the second came out unlikely."""
    tree = static((1, 1))(model, params, prefix, round_, support)
    law = tree.laws[1]
    assert law is not None
    if law[1][law[0] == tree.tokens[1]][0] < 0.5:
        tree.add(-1, static((1,), with_replacement)(model, params, prefix, round_ + 100, support).drawn())
    return tree


@pytest.mark.parametrize("seed", range(3))
def test_block_verification_of_trees_that_came_out_as_chains_would_be_seen(seed: int) -> None:
    """Why `parents` rule it out whatever the tree looks like: its shape tells of the tokens."""
    draft, target = Table(1 + seed, 3), Table(12 + seed, 3)

    def by_shape() -> tuple[int, ...]:
        tree = chain_or_two(draft, BLOCK, list(PROMPT), 0, 0)
        if tree.is_chain:
            drafted = Drafted(np.array(tree.tokens, np.int32), tree.travelling())
            return tuple(check(target, BLOCK, PROMPT, drafted, 1).tokens.tolist())
        return tuple(check_tree(target, BLOCK, tree, 1).tokens.tolist())

    def node_by_node() -> tuple[int, ...]:
        return tuple(check_tree(target, BLOCK, chain_or_two(draft, BLOCK, list(PROMPT), 0, 0), 1).tokens.tolist())

    assert error_of(node_by_node, target, BLOCK) < TOLERANCE
    assert error_of(by_shape, target, BLOCK) > 100 * TOLERANCE


def test_dropping_a_drawn_sibling_by_its_confidence_would_be_seen() -> None:
    draft, target = Table(1, 4), Table(2, 4)

    def pruned() -> tuple[int, ...]:
        tree = static((2,))(draft, REJECTION, PROMPT, 0, 0)
        first = tree.laws[0]
        assert first is not None
        if first[1][first[0] == tree.tokens[0]][0] < 0.3:
            tree = Tree(tree.prefix, tree.tokens[1:], tree.parents[1:], tree.laws[1:])
        return tuple(check_tree(target, REJECTION, tree, 1).tokens.tolist())

    assert error_of(pruned, target, REJECTION) > 1e-2


def test_siblings_judged_by_the_same_p_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchanged(p: np.ndarray, *rest: object) -> np.ndarray:
        return p

    monkeypatch.setattr(tree_module, "residual_weights", unchanged)
    assert error_of_round(static((2,)), Table(1, 4), Table(2, 4), REJECTION) > 1e-2


def test_siblings_declared_with_the_law_of_the_first_would_be_seen() -> None:
    """Drawn without replacement, declared with: the commonest mistake in trees."""

    def misstated(*args: object) -> list[object]:
        drawn = without_replacement(*args)
        return [replace(child, law=drawn[0].law) for child in drawn]

    assert error_of_round(static((2,), misstated), Table(1, 4), Table(2, 4), REJECTION) > 1e-2  # type: ignore[arg-type]


@pytest.mark.parametrize("grow", [static((2, 1)), static((2,), with_replacement), eager(3)])
@MODES
@pytest.mark.parametrize("support", [0, 2])
def test_a_ladder_of_three_with_a_tree_at_its_foot_is_lossless(
    mode: SamplingParams, grow: Grower, support: int
) -> None:
    draft, middle, target = Table(20, 3), Table(21, 3), Table(22, 3)

    def run() -> tuple[int, ...]:
        tree = grow(draft, mode, PROMPT, 0, support)
        below = check_tree(middle, mode, tree, 1, want_laws=True, support=support)
        return tuple(check(target, mode, PROMPT, Drafted(below.tokens, below.laws), 2, tier=2).tokens.tolist())

    assert error_of(run, target, mode) < TOLERANCE


@pytest.mark.parametrize("grow", [static((2, 2)), eager(4)])
def test_a_middle_tiers_token_has_its_law_given_that_it_was_emitted(grow: Grower) -> None:
    draft, middle = Table(23, 3), Table(24, 3)

    def run() -> tuple[int, ...]:
        return tuple(check_tree(middle, BLOCK, grow(draft, BLOCK, PROMPT, 0, 0), 1, want_laws=True).tokens.tolist())

    emitted: defaultdict[tuple[int, ...], np.ndarray] = defaultdict(lambda: np.zeros(3))
    for text, mass in exact_law(run).items():
        for i, token in enumerate(text):
            emitted[text[:i]][token] += mass
    assert max(len(prefix) for prefix in emitted) >= 2
    for prefix, masses in emitted.items():
        history = [*PROMPT, *prefix]
        p = process(middle.logits(history), BLOCK, history, len(PROMPT)).double().exp().numpy()
        np.testing.assert_allclose(masses / masses.sum(), p, atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(4))
def test_more_siblings_are_accepted_at_least_as_often(seed: int) -> None:
    draft, target = Table(30 + seed, 4), Table(40 + seed, 4)
    rates = []
    for width in (1, 2, 3):
        law = exact_law(lambda width=width: one_tree_round(  # type: ignore[misc]
            static((width,)), draft, target, REJECTION, PROMPT, itertools.count()
        ).num_accepted)
        rates.append(law.get(1, 0.0))
    assert rates == sorted(rates)
    assert rates[2] > rates[0] + 0.02

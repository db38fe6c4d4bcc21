"""Simulated drafts have the shape asked for, and the verifier's walk takes the path of its own words."""

from __future__ import annotations

import pytest

from actors.emulation.voice import ROOT, Speaker
from actors.messages import DraftShape
from actors.spec import Voice
from cluster.simulation.growing import NUM_WORDS, grow, guesses
from cluster.simulation.walking import walk

TARGET = Voice("target")
DRAFT = Voice("draft", agreement=(0.7,), further_guesses=(0.5,))
AUTHOR = Speaker((TARGET,), NUM_WORDS)
DRAFTER = Speaker((DRAFT, TARGET), NUM_WORDS)


def test_a_chain_has_its_length_and_a_static_tree_its_widths() -> None:
    chain = grow(DRAFTER, ROOT, DraftShape(5))
    assert (len(chain.tokens), chain.parents, chain.level_rows) == (5, None, [1] * 5)
    tree = grow(DRAFTER, ROOT, DraftShape(3, widths=(2, 3, 1)))
    assert tree.parents == [-1, -1, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7]
    assert tree.level_rows == [2, 6, 6]


@pytest.mark.parametrize("num_nodes", [1, 5, 17])
def test_a_dynamic_tree_keeps_its_bounds(num_nodes: int) -> None:
    tree = grow(DRAFTER, ROOT, DraftShape(4, num_nodes=num_nodes))
    assert tree.parents is not None
    assert len(tree.tokens) == num_nodes == sum(tree.level_rows)
    assert len(tree.level_rows) <= 4
    assert all(parent < node for node, parent in enumerate(tree.parents))


def test_siblings_differ() -> None:
    for prefix in range(200):
        tokens = [token for token, _ in guesses(DRAFTER, prefix, 0, 6)]
        assert len(set(tokens)) == 6


@pytest.mark.parametrize("shape", [DraftShape(4), DraftShape(4, widths=(2, 2, 1, 1)), DraftShape(6, num_nodes=20)])
def test_the_accepted_path_is_the_verifiers_own_words_and_cannot_be_longer(shape: DraftShape) -> None:
    lengths = []
    for seed in range(200):
        root = ROOT + seed
        grown = grow(DRAFTER, root, shape)
        path = walk(AUTHOR, root, grown.tokens, grown.parents)
        parents = grown.parents or [node - 1 for node in range(len(grown.tokens))]
        assert [parents[node] for node in path] == [-1, *path[:-1]][: len(path)]
        lengths.append(len(path))
    assert sum(lengths) > 0


def test_a_tree_is_accepted_further_than_the_chain_it_holds() -> None:
    def mean(shape: DraftShape) -> float:
        grown = [(ROOT + seed, grow(DRAFTER, ROOT + seed, shape)) for seed in range(500)]
        return sum(len(walk(AUTHOR, root, each.tokens, each.parents)) for root, each in grown) / 500

    assert mean(DraftShape(4, widths=(2, 2, 1, 1))) > 1.2 * mean(DraftShape(4))

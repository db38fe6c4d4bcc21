"""Token trees over table models: grown by fixed widths or as they come, verified, and continued round by round."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from actors.messages import Laws
from actors.sampling import laws as law_tools
from actors.sampling.draw import Drawn, draw
from actors.sampling.laws import SparseLaw
from actors.sampling.noise import Purpose, stream
from actors.sampling.params import SamplingParams
from actors.sampling.rows import LogitRows
from actors.sampling.siblings import confidences, draw_children
from actors.sampling.tree import VerifiedTree, path_to, verify_tree
from tests.unit.sampling.tables import PROMPT, Table

ROOT = -1


@dataclass
class Tree:
    """A tree under construction after `prefix`."""

    prefix: list[int]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    laws: list[SparseLaw | None] = field(default_factory=list)

    def text(self, node: int) -> list[int]:
        path = path_to(np.array(self.parents, np.int32), node)
        return [*self.prefix, *(self.tokens[i] for i in path)]

    def add(self, parent: int, children: Sequence[Drawn]) -> list[int]:
        first = len(self.tokens)
        for child in children:
            self.tokens.append(child.token)
            self.parents.append(parent)
            self.laws.append(child.law)
        return list(range(first, len(self.tokens)))

    def drawn(self) -> list[Drawn]:
        return [Drawn(token, law) for token, law in zip(self.tokens, self.laws, strict=True)]

    def travelling(self) -> Laws | None:
        known = [law for law in self.laws if law is not None]
        assert len(known) in (0, len(self.laws))
        return law_tools.build(known) if known else None

    def rows(self, model: Table) -> torch.Tensor:
        """[num_nodes + 1, V]"""
        return torch.stack([model.logits(self.text(node)) for node in range(ROOT, len(self.tokens))])

    @property
    def is_chain(self) -> bool:
        return self.parents == list(range(ROOT, len(self.parents) - 1))


Grower = Callable[[Table, SamplingParams, Sequence[int], int, int], Tree]  # model, params, prefix, round, support
Children = Callable[..., list[Drawn]]


def without_replacement(*args: Any) -> list[Drawn]:
    return draw_children(*args)


def with_replacement(*args: Any) -> list[Drawn]:
    return [draw(*args[:-1]) for _ in range(args[-1])]


def certain(
    logits: LogitRows, index: int, params: SamplingParams, history: Sequence[int], num_prompt: int, rng: object,
    support: int, count: int,
) -> list[Drawn]:
    """The likeliest, without a law: a deterministic drafter."""
    return [Drawn(int(token), None) for token in np.argsort(-logits.row(index), kind="stable")[:count]]


def repeated(*args: Any) -> list[Drawn]:
    """A deterministic drafter that proposes its best token twice."""
    best = certain(*args)
    return [best[0], *best]


def static(widths: Sequence[int], children: Children = without_replacement) -> Grower:
    """Level by level, `widths[d]` children for every node of depth d."""

    def grow(model: Table, params: SamplingParams, prefix: Sequence[int], round_: int, support: int) -> Tree:
        tree, level = Tree(list(prefix)), [ROOT]
        rng = stream(params.entropy, Purpose.DRAFT, 0, round_)
        for width in widths:
            level = [
                child for node in level for child in tree.add(node, children(
                    LogitRows(model.logits(tree.text(node))[None]), 0, params, tree.text(node), len(PROMPT), rng,
                    support, width,
                ))
            ]
        return tree

    return grow


def eager(num_nodes: int, width: int = 2) -> Grower:
    """Best first: the surest open node gets children, one if the drafter is sure of its path and `width` if not."""

    def grow(model: Table, params: SamplingParams, prefix: Sequence[int], round_: int, support: int) -> Tree:
        tree, open_nodes = Tree(list(prefix)), {ROOT: 1.0}
        rng = stream(params.entropy, Purpose.DRAFT, 0, round_)
        while open_nodes and len(tree.tokens) < num_nodes:
            node = max(open_nodes, key=lambda one: open_nodes[one])
            sure = open_nodes.pop(node)
            count = min(1 if 0.35 < sure < 1.0 else width, num_nodes - len(tree.tokens))
            row = LogitRows(model.logits(tree.text(node))[None])
            drawn = draw_children(row, 0, params, tree.text(node), len(PROMPT), rng, support, count)
            added = tree.add(node, drawn)
            open_nodes.update(zip(added, (sure * one for one in confidences(row, 0, drawn)), strict=True))
        return tree

    return grow


def check_tree(
    model: Table, params: SamplingParams, tree: Tree, round_: int, tier: int = 1, want_laws: bool = False,
    support: int = 0,
) -> VerifiedTree:
    return verify_tree(
        np.array(tree.tokens, np.int32), np.array(tree.parents, np.int32), tree.travelling(),
        LogitRows(tree.rows(model)), params, np.array(tree.prefix, np.int32), len(PROMPT), tier, round_, want_laws,
        support,
    )


def generate_with_trees(
    grow: Grower, draft: Table, target: Table, params: SamplingParams, num_tokens: int, support: int = 0
) -> tuple[tuple[int, ...], float]:
    """Rounds until `num_tokens` are committed; returns the text and the accepted tokens per round."""
    text, rounds = list(PROMPT), itertools.count()
    accepted = passes = 0
    while len(text) < len(PROMPT) + num_tokens:
        verdict = one_tree_round(grow, draft, target, params, text, rounds, support)
        accepted += verdict.num_accepted
        passes += 1
        text.extend(verdict.tokens.tolist())
    return tuple(text[len(PROMPT) : len(PROMPT) + num_tokens]), accepted / passes


def one_tree_round(
    grow: Grower, draft: Table, target: Table, params: SamplingParams, text: Sequence[int], rounds: Iterator[int],
    support: int = 0,
) -> VerifiedTree:
    tree = grow(draft, params, text, next(rounds), support)
    return check_tree(target, params, tree, next(rounds))

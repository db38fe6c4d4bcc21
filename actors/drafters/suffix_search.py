"""From what followed the end of a text before to a draft: a chain or a tree of the likeliest continuations.

SuffixDecoding (2411.04975, section 4): every end of the text that was met before is a place to go on from, a long one
with few occurrences as well as a short one with many. A continuation is as likely as it was frequent, a path as likely
as its steps together, and of all places the one wins from which most tokens are to be expected. The longer the end that
was found, the further its continuations are trusted (`spec_factor`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.drafters.suffix_automaton import Place, SuffixAutomaton
from actors.messages import DraftShape

_PLACES = 6  # ends of one text tried, longest first: shorter ones are seldom better
_WIDEST = 8  # continuations of one node considered
_MANY = 512  # a place with more of them tells only its best one


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a continuation is trusted."""

    spec_factor: float  # draft tokens for each token of the end that was found, at most
    min_token_prob: float  # least probability of a path

    def reach(self, length: int, num_tokens: int) -> int:
        """How many of `num_tokens` may follow an end of `length` tokens."""
        return min(num_tokens, int(self.spec_factor * length))


@dataclass(frozen=True, slots=True)
class Start:
    """A place to go on from, with what may be expected of it."""

    automaton: SuffixAutomaton
    place: Place
    tokens: list[int]  # its likeliest continuation, step by step
    score: float  # expected number of them that come true


@dataclass(slots=True)
class Tree:
    """A draft under way, as in `Draft`."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    _nodes: dict[tuple[int, int], int] = field(default_factory=dict)
    _num_children: dict[int, int] = field(default_factory=dict)

    def find(self, parent: int, token: int) -> int | None:
        """The child of a node (-1: the root) that carries `token`."""
        return self._nodes.get((parent, token))

    def num_children(self, parent: int) -> int:
        """Of a node, or the root."""
        return self._num_children.get(parent, 0)

    def add(self, parent: int, token: int) -> int:
        """A new child."""
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(1 if parent < 0 else self.depths[parent] + 1)
        self._nodes[parent, token] = node
        self._num_children[parent] = self.num_children(parent) + 1
        return node


def starts(
    automata: Sequence[SuffixAutomaton], text: Sequence[int], num_tokens: int, limits: Limits
) -> list[Start]:
    """The places that the end of `text` leads to, best first; those from which nothing follows are left out."""
    found: list[Start] = []
    for automaton in automata:
        place: Place | None = automaton.find(text)
        for _ in range(_PLACES):
            if place is None or place.length == 0:
                break
            reach = limits.reach(place.length, num_tokens)
            tokens, score = automaton.likeliest(place, reach, limits.min_token_prob)
            if tokens:
                found.append(Start(automaton, place, tokens, score))
            place = automaton.shorter(place)
    found.sort(key=lambda start: (-start.score, -start.place.length))
    return found


def grow(places: Sequence[Start], shape: DraftShape, limits: Limits) -> Tree:
    """The tree of `shape` with the likeliest paths: of the best place first, then of the others while there is room."""
    tree = Tree()
    limit = shape.num_nodes or _size(shape)
    for start in places:
        if len(tree.tokens) >= limit:
            break
        _grow(tree, start, shape, limits, limit)
    return tree


def _grow(tree: Tree, start: Start, shape: DraftShape, limits: Limits, limit: int) -> None:
    """Add what follows one place, the likeliest first."""
    depth = limits.reach(start.place.length, shape.num_tokens)
    if shape.widths:
        depth = min(depth, len(shape.widths))
    waiting: list[tuple[float, int, int, int, Place]] = []  # (-probability, order, parent, token, place after it)
    order = 0

    def offer(parent: int, probability: float, place: Place) -> None:
        nonlocal order
        place = start.automaton.settled(place)
        if place.length == 0:
            return
        for token, share, after in _continuations(start.automaton, place):
            if probability * share < limits.min_token_prob:
                break
            heapq.heappush(waiting, (-probability * share, order, parent, token, after))
            order += 1

    offer(-1, 1.0, start.place)
    while waiting and len(tree.tokens) < limit:
        negative, _, parent, token, place = heapq.heappop(waiting)
        node = tree.find(parent, token)
        if node is None:
            if tree.num_children(parent) >= _width(tree, parent, shape):
                continue
            node = tree.add(parent, token)
        if tree.depths[node] < depth:
            offer(node, -negative, place)


def _continuations(automaton: SuffixAutomaton, place: Place) -> list[tuple[int, float, Place]]:
    return automaton.several(place, _WIDEST if automaton.width(place) <= _MANY else 1)


def _width(tree: Tree, parent: int, shape: DraftShape) -> int:
    """How many children a node may have."""
    level = 0 if parent < 0 else tree.depths[parent]
    if shape.widths:
        return shape.widths[level] if level < len(shape.widths) else 0
    if shape.siblings:  # a comb: only the first child of a node on the chain goes on
        on_chain = parent < 0 or _is_first(tree, parent)
        return 1 + shape.siblings if on_chain else 0
    return _WIDEST


def _is_first(tree: Tree, node: int) -> bool:
    """Whether a node and all its ancestors are their parents' first children."""
    while node >= 0:
        if tree.parents.index(tree.parents[node]) != node:
            return False
        node = tree.parents[node]
    return True


def _size(shape: DraftShape) -> int:
    """Nodes of a static tree, or of a comb."""
    if not shape.widths:
        return shape.num_tokens * (1 + shape.siblings)
    size, level = 0, 1
    for width in shape.widths[: shape.num_tokens]:
        level *= width
        size += level
    return size

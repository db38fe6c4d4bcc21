"""What a simulated drafter proposes: chains, static trees, and dynamic trees grown where their path is likeliest."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from actors.emulation.voice import Speaker, extend, shares
from actors.messages import DraftShape

NUM_WORDS = 32_000  # of the simulated vocabulary, whose ids are the words themselves


@dataclass(frozen=True, slots=True)
class Grown:
    """Drafted tokens before anything has taken time."""

    tokens: list[int]
    parents: list[int] | None  # None: a chain
    level_rows: list[int]  # nodes of each level; one pass makes a level out of the one before


def guesses(speaker: Speaker, prefix: int, position: int, count: int) -> list[tuple[int, float]]:
    """The `count` likeliest tokens, all different, best first, each with the chance that it is what is followed."""
    choice = speaker.choose(prefix, position)
    found = list(zip(choice.words, shares(choice.chances), strict=True))[:count]
    token = choice.best
    while len(found) < count:  # no more are right than by accident
        token = (token + 1) % NUM_WORDS
        if token not in choice.words:
            found.append((token, 0.0))
    return found


def grow(speaker: Speaker, prefix: int, shape: DraftShape, first_position: int = 0) -> Grown:
    """Tokens of `shape` after the prefix of that hash. Raises `ValueError` for a shape without tokens."""
    if shape.num_tokens < 1:
        raise ValueError(f"a draft of {shape.num_tokens} tokens: ask for at least 1")
    if shape.widths:
        return _static(speaker, prefix, shape.widths[: shape.num_tokens], first_position)
    if shape.num_nodes:
        return _dynamic(speaker, prefix, shape, first_position)
    tokens: list[int] = []
    for position in range(first_position, first_position + shape.num_tokens):
        tokens.append(speaker.choose(prefix, position).best)
        prefix = extend(prefix, tokens[-1])
    return Grown(tokens, None, [1] * len(tokens))


def _static(speaker: Speaker, prefix: int, widths: tuple[int, ...], first_position: int) -> Grown:
    tokens: list[int] = []
    parents: list[int] = []
    rows: list[int] = []
    level = [(-1, prefix)]
    for depth, width in enumerate(widths):
        below: list[tuple[int, int]] = []
        for parent, before in level:
            for token, _ in guesses(speaker, before, first_position + depth, width):
                below.append((len(tokens), extend(before, token)))
                tokens.append(token)
                parents.append(parent)
        level = below
        rows.append(len(level))
    return Grown(tokens, parents, rows)


def _dynamic(speaker: Speaker, prefix: int, shape: DraftShape, first_position: int) -> Grown:
    """Best first by the product of the drafter's probabilities (EAGLE-2, 2406.16858); ties: the earlier one."""
    tokens: list[int] = []
    parents: list[int] = []
    rows: list[int] = []
    count = 0
    heap: list[tuple[float, int, int, int, int, int]] = []  # -probability, tie, parent, depth, token, prefix before it

    def expand(parent: int, depth: int, before: int, share: float) -> None:
        nonlocal count
        choice = speaker.choose(before, first_position + depth)
        for token, chance in zip(choice.words, shares(choice.chances), strict=True):
            count += 1
            heapq.heappush(heap, (-share * chance, count, parent, depth, token, before))

    expand(-1, 0, prefix, 1.0)
    while heap and len(tokens) < shape.num_nodes:
        share, _, parent, depth, token, before = heapq.heappop(heap)
        if depth == len(rows):
            rows.append(0)
        rows[depth] += 1
        tokens.append(token)
        parents.append(parent)
        if depth + 1 < shape.num_tokens:
            expand(len(tokens) - 1, depth + 1, extend(before, token), -share)
    return Grown(tokens, parents, rows)

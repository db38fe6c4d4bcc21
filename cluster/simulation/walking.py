"""Greedy verification of chains and trees by a voice."""

from __future__ import annotations

from collections.abc import Sequence

from actors.emulation.voice import Speaker, extend


def walk(speaker: Speaker, prefix: int, tokens: Sequence[int], parents: Sequence[int] | None) -> list[int]:
    """Accepted nodes of a chain (`parents` None) or a tree, from the root: those that `speaker` says itself."""
    path: list[int] = []
    if parents is None:
        for node, token in enumerate(tokens):
            if speaker.choose(prefix).best != token:
                break
            path.append(node)
            prefix = extend(prefix, token)
        return path
    children: dict[int, dict[int, int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, {}).setdefault(tokens[node], node)
    at = -1
    while (found := children.get(at, {}).get(speaker.choose(prefix).best)) is not None:
        path.append(found)
        prefix = extend(prefix, tokens[found])
        at = found
    return path

"""The likely outcomes of a verify pass, by the drafter's own confidence: pure functions.

An outcome is (node, token): the draft up to and with `node` is accepted, none of its children is, and `token`, the
verifier's own, comes next. Its chance is that of the path to the node, times the part that the node's children leave
to this token; a token that is a child of the node would have been accepted, so it is no outcome.
A hit saves the same wherever it is (the time to draft a branch, and a round trip), so the expected gain of a branch
is in proportion to this chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from actors.drafters.guesses import Guesses


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a verify pass may end."""

    node: int  # -1: nothing is accepted
    token: int
    chance: float


def likely_outcomes(
    tokens: Sequence[int],  # [num_nodes]
    parents: Sequence[int],  # [num_nodes]
    guesses: Sequence[Guesses],  # [num_nodes + 1]; entry i + 1 follows node i, entry 0 the context
    num_branches: int,
    num_guesses: int,  # at most so many tokens after each node
    acceptance: float = 0.0,  # measured; 0: the drafter's confidence is all there is
) -> list[Outcome]:
    """At most `num_branches` outcomes, likeliest first; equal chances: the earlier node first."""
    own = [guesses[parent + 1].prob(token) for token, parent in zip(tokens, parents, strict=True)]
    firsts = {parent: node for node, parent in reversed(list(enumerate(parents)))}
    sharpness = _sharpness([own[node] for node in firsts.values()], acceptance)
    reach = [1.0]
    children: list[dict[int, float]] = [{} for _ in range(len(tokens) + 1)]
    for node, parent in enumerate(parents):
        chance = own[node] ** sharpness
        reach.append(reach[parent + 1] * chance)
        children[parent + 1][tokens[node]] = chance
    found: list[Outcome] = []
    for node in range(-1, len(tokens)):
        accepted, known = children[node + 1], guesses[node + 1]
        found.extend(
            Outcome(node, token, reach[node + 1] * chance)
            for token, chance in _others(known, accepted, sharpness)[:num_guesses]
        )
    found.sort(key=lambda outcome: -outcome.chance)
    return found[:num_branches]


def _sharpness(own: Sequence[float], acceptance: float) -> float:
    """The power of its confidences at which a drafter's tokens would be accepted as often as they are.

    How sure a model is of a token says which tokens are risky, but not how risky: a copy of the verifier may be unsure
    and yet always agree with it.
    """
    if not own or acceptance <= 0.0:
        return 1.0
    mean_log = sum(math.log(max(p, 1e-6)) for p in own) / len(own)
    if mean_log > -1e-6:
        return 1.0
    return min(4.0, max(0.02, math.log(min(acceptance, 0.995)) / mean_log))


def _others(known: Guesses, accepted: Mapping[int, float], sharpness: float) -> list[tuple[int, float]]:
    """(token, chance) of tokens that are no children, best first: they share what the children leave."""
    left = max(1e-3, 1.0 - sum(accepted.values()))
    others = [pair for pair in zip(known.ids, known.probs, strict=True) if pair[0] not in accepted]
    first: list[tuple[int, float]] = []
    if not accepted and others:  # after a leaf the best guess is as good as a draft token
        (token, prob), *others = others
        first = [(token, prob ** sharpness)]
        left = max(1e-3, 1.0 - first[0][1])
    mass = sum(prob for _, prob in others) + max(0.0, 1.0 - sum(known.probs))
    return first + [(token, left * prob / max(mass, 1e-9)) for token, prob in others]

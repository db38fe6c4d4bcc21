"""Likely outcomes against the law they stand for: the verifier that agrees with the drafter's confidences."""

from __future__ import annotations

import numpy as np
import pytest

from actors.drafters.guesses import Guesses
from actors.drafters.outcomes import likely_outcomes

CERTAIN = Guesses((7, 8, 9), (0.8, 0.15, 0.05))
TORN = Guesses((4, 5, 6), (0.4, 0.35, 0.25))


def test_all_outcomes_together_are_certain() -> None:
    guesses = [CERTAIN, TORN, CERTAIN, TORN, TORN]
    found = likely_outcomes([7, 4, 8, 5], [-1, 0, -1, 0], guesses, 100, 100)
    assert sum(outcome.chance for outcome in found) == pytest.approx(1.0)
    assert len({(o.node, o.token) for o in found}) == len(found)
    assert [o.chance for o in found] == sorted((o.chance for o in found), reverse=True)


def test_chances_are_those_of_a_verifier_with_the_drafters_law() -> None:
    """Walk the tree with tokens drawn from the guesses and count where the walk ends."""
    guesses, tokens, parents = [CERTAIN, TORN, CERTAIN, TORN, TORN], [7, 4, 8, 5], [-1, 0, -1, 0]
    chance = {(o.node, o.token): o.chance for o in likely_outcomes(tokens, parents, guesses, 100, 100)}
    rng, counts, runs = np.random.default_rng(0), dict.fromkeys(chance, 0), 20_000
    for _ in range(runs):
        node = -1
        while True:
            law = guesses[node + 1]
            token = int(rng.choice(law.ids, p=law.probs))
            below = [i for i in range(4) if parents[i] == node and tokens[i] == token]
            if not below:
                break
            node = below[0]
        counts[node, token] += 1
    for outcome, expected in chance.items():
        assert counts[outcome] / runs == pytest.approx(expected, abs=0.012)


def test_no_more_branches_nor_guesses_than_the_plan_has() -> None:
    found = likely_outcomes([7, 4], [-1, 0], [CERTAIN, TORN, CERTAIN], 4, 1)
    assert len(found) == 3
    assert len({o.node for o in found}) == 3
    assert len(likely_outcomes([7, 4], [-1, 0], [CERTAIN, TORN, CERTAIN], 2, 9)) == 2
    assert likely_outcomes([], [], [CERTAIN], 0, 3) == []


def test_a_token_beyond_the_guesses_has_at_most_what_they_leave() -> None:
    assert Guesses((1, 2), (0.6, 0.3)).prob(5) == pytest.approx(0.1)
    assert CERTAIN.prob(5) == pytest.approx(0.0)

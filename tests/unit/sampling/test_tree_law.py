"""The law of text generated with trees, by sampling: real noise, several rounds, chi-square against the target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.sampling import tree as tree_module
from actors.sampling.noise import stream
from tests.unit.sampling.tables import Table, joint_law, p_value, sampled
from tests.unit.sampling.test_law import BLOCK, COUPLED, P_MIN, REJECTION
from tests.unit.sampling.trees import Grower, certain, eager, generate_with_trees, static, with_replacement

pytestmark = pytest.mark.exactness

SAMPLES = 8_000
DRAFT, TARGET = Table(5, 4), Table(6, 4)


@pytest.mark.parametrize(
    ("mode", "grow"),
    [
        (REJECTION, static((2, 1))),
        (REJECTION, static((2, 1), with_replacement)),
        (REJECTION, static((2, 1), certain)),
        (BLOCK, static((1, 2))),
        (BLOCK, eager(4)),
        (COUPLED, static((2, 1))),
        (COUPLED, eager(4)),
    ],
    ids=["rejection", "with-replacement", "deterministic", "block", "eager", "coupled", "coupled-eager"],
)
def test_law_of_three_tokens_is_the_targets_over_several_rounds(mode: object, grow: Grower) -> None:
    params = replace(mode, top_p=0.97)  # type: ignore[type-var]
    counts, accepted = sampled(lambda one: generate_with_trees(grow, DRAFT, TARGET, one, 3), params, SAMPLES)
    assert p_value(counts, joint_law(TARGET, params, 3)) > P_MIN
    assert accepted > 0.2


def test_noise_of_one_node_used_for_its_siblings_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Constant:
        def __init__(self, *name: int) -> None:
            self._value = float(stream(*name).random())

        def random(self, size: int | None = None) -> object:
            return self._value if size is None else [self._value] * size

    monkeypatch.setattr(tree_module, "stream", Constant)
    counts, _ = sampled(
        lambda one: generate_with_trees(static((3,)), DRAFT, TARGET, one, 1), REJECTION, SAMPLES
    )
    assert p_value(counts, joint_law(TARGET, REJECTION, 1)) < P_MIN

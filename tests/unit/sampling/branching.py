"""Exact laws of randomised code: every random choice is taken both ways and weighed.

The functions under test compare uniforms with thresholds and draw indices from weights. Here a uniform is
a `Coin` whose comparison is a branch with a known probability, and a draw is a branch over indices. Running
the code once per path through these branches gives its law to rounding, without sampling error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest

from actors.sampling import draw as draw_module
from actors.sampling import laws as law_tools
from actors.sampling import siblings as siblings_module
from actors.sampling import tree as tree_module
from actors.sampling import verify as verify_module
from tests.unit.sampling.tables import remembered_processing

Outcome = TypeVar("Outcome", bound=Hashable)


class Coin:
    """A uniform in [0, 1) that may be scaled, and compared once."""

    def __init__(self, paths: Paths, scale: float = 1.0) -> None:
        self.paths = paths
        self.scale = scale
        self.used = False

    def __mul__(self, scale: float) -> Coin:
        assert not self.used, "one uniform used twice"
        self.used = True
        return Coin(self.paths, self.scale * scale)

    def __lt__(self, threshold: float) -> bool:
        assert not self.used, "one uniform used twice"
        self.used = True
        below = min(max(threshold / self.scale, 0.0), 1.0)
        return self.paths.choose([below, 1.0 - below]) == 0


class Paths:
    """Depth-first walk over the random choices of a function."""

    def __init__(self) -> None:
        self.path: list[int] = []
        self.depth = 0
        self.mass = 1.0
        self.pending: list[list[int]] = [[]]

    def choose(self, weights: Sequence[float]) -> int:
        """An index of non-zero weight: the one this run is to take."""
        probs = np.asarray(weights, np.float64) / np.sum(weights)
        if self.depth == len(self.path):
            options = np.flatnonzero(probs).tolist()
            self.pending.extend([*self.path, option] for option in options[1:])
            self.path.append(options[0])
        index = self.path[self.depth]
        self.depth += 1
        self.mass *= float(probs[index])
        return index

    # The face of a numpy Generator.
    def random(self, size: int | None = None) -> Any:
        return 0.0 if size is None else [Coin(self) for _ in range(size)]


def exact_law(run: Callable[[], Outcome]) -> dict[Outcome, float]:
    """Law of `run()`, whose randomness comes from drawing and verifying."""
    law: defaultdict[Outcome, float] = defaultdict(float)
    paths = Paths()
    with remembered_processing(), pytest.MonkeyPatch.context() as patch:
        for judge in (verify_module, tree_module):
            patch.setattr(judge, "stream", lambda *name: paths)
        for module in (draw_module, law_tools, siblings_module):
            patch.setattr(module, "sample", lambda weights, uniform: paths.choose(weights))
        while paths.pending:
            paths.path, paths.depth, paths.mass = paths.pending.pop(), 0, 1.0
            outcome = run()
            law[outcome] += paths.mass
    return dict(law)

"""Expected acceptance of a draft: the mean of what verification gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from actors.sampling import laws as law_tools
from actors.sampling.expected import expected_accepted
from actors.sampling.params import SamplingParams
from actors.sampling.rows import LogitRows
from tests.unit.sampling.branching import exact_law
from tests.unit.sampling.tables import PROMPT, Drafted, Table, check, propose
from tests.unit.sampling.test_verify import BLOCK, COUPLED, GREEDY, REJECTION


def expected(target: Table, params: SamplingParams, drafted: Drafted) -> float:
    assert drafted.laws is not None
    rows = LogitRows(target.rows(PROMPT, drafted.tokens.tolist()))
    return expected_accepted(drafted.tokens, drafted.laws, rows, params, PROMPT, len(PROMPT))


@pytest.mark.parametrize("mode", [REJECTION, BLOCK], ids=["rejection", "block"])
@pytest.mark.parametrize("k", [0, 1, 3, 4])
def test_it_is_the_mean_over_all_outcomes_of_the_noise(mode: SamplingParams, k: int) -> None:
    draft, target = Table(81, 5), Table(82, 5, support=(0, 1, 2, 3))
    for entropy in range(15):
        params = replace(mode, entropy=entropy)
        drafted = propose(draft, params, PROMPT, k, 0, 0)
        law = exact_law(lambda: check(target, params, PROMPT, drafted, 1).num_accepted)  # noqa: B023
        wanted = sum(accepted * mass for accepted, mass in law.items())
        assert expected(target, params, drafted) == pytest.approx(wanted, abs=1e-12)


def test_modes_without_noise_are_refused() -> None:
    drafted = Drafted(np.array([1], np.int32), law_tools.build([(np.array([1], np.int32), np.ones(1, np.float32))]))
    for params in (GREEDY, COUPLED):
        with pytest.raises(ValueError, match="count with `verify`"):
            expected(Table(1, 3), params, drafted)

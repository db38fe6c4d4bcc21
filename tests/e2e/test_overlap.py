"""Overlapped rounds over trees, a target of two ranks and a lookahead of the controller's, through gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cluster.cli.client import Options
from tests.e2e.service import Service, served
from tests.ray.test_target_group import uneven_model

pytestmark = [pytest.mark.e2e, pytest.mark.exactness, pytest.mark.slow, pytest.mark.timeout(420)]

PROMPT = "one two three one two three one two"
MODES = pytest.mark.parametrize(
    "options",
    [Options(temperature=0.0, max_tokens=64), Options(temperature=0.8, seed=5, max_tokens=64)],
    ids=["greedy", "seeded"],
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    model = str(uneven_model(tmp_path_factory.mktemp("overlap")))
    small = {"model": model, "kv_tokens": 4096, "num_threads": 1, "resources": {"num_cpus": 0.1}}
    settings: dict[str, object] = {
        "model_name": "overlap",
        "tiers": [
            {"name": "draft", "weights": "int8", **small},
            {"name": "target", "tensor_parallel_size": 2, **small},
        ],
        "speculation": {
            "draft_timeout_s": 60, "lookahead": "auto", "tree": {"nodes": 12},
            "overlap": {"branches": 8, "guesses": 2, "tokens": 4},
        },
        "limits": {"max_prompt_tokens": 256, "max_tokens": 128},
        "sampling": {"max_tokens": 48},
    }
    with served(settings) as running:
        yield running


@MODES
@pytest.mark.parametrize("k", [1, 4, 16])
def test_overlap_and_trees_leave_the_text_as_it_is(service: Service, options: Options, k: int) -> None:
    alone = service.ask(replace(options, speculation=False), PROMPT)
    got = service.ask(replace(options, lookahead_tokens=k), PROMPT)
    assert got.token_ids == alone.token_ids
    assert got.finish.speculation.num_accepted > 0
    assert sum(got.finish.speculation.num_overlapped_by_outcome.values()) > 0
    service.wait_idle()


@MODES
def test_whatever_the_controller_chooses_leaves_the_text_as_it_is(service: Service, options: Options) -> None:
    alone = service.ask(replace(options, speculation=False), PROMPT)
    got = service.all_at_once([options] * 6, PROMPT)
    assert all(one.token_ids == alone.token_ids for one in got)
    assert sum(one.finish.speculation.num_drafted for one in got) > 0  # else it would prove nothing
    service.wait_idle()

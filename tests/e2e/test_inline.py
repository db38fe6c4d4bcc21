"""Three tiers in two pools, through gRPC: an int4 copy inline in the actor of an int8 one, drafting for the target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cluster.cli.client import Options
from tests.e2e.service import Service, served
from tests.ray.test_target_group import uneven_model

pytestmark = [pytest.mark.e2e, pytest.mark.exactness, pytest.mark.slow, pytest.mark.timeout(420)]

PROMPT = "one two three one two three one two"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    small = {
        "model": str(uneven_model(tmp_path_factory.mktemp("inline"))), "kv_tokens": 4096, "num_threads": 1,
    }
    own = {"resources": {"num_cpus": 0.1}}
    settings: dict[str, object] = {
        "model_name": "inline",
        "tiers": [
            {"name": "small", "weights": "int4", "window": 3, "inline": True, **small},
            {"name": "medium", "weights": "int8", **small, **own},
            {"name": "target", **small, **own},
        ],
        "speculation": {"draft_timeout_s": 60},
        "limits": {"max_prompt_tokens": 256, "max_tokens": 128},
        "sampling": {"max_tokens": 48},
    }
    with served(settings) as running:
        yield running


@pytest.mark.parametrize(
    "options",
    [Options(temperature=0.0, max_tokens=48), Options(temperature=0.8, seed=5, max_tokens=48)],
    ids=["greedy", "seeded"],
)
def test_an_inline_tier_leaves_the_text_as_it_is_and_its_pool_empty(service: Service, options: Options) -> None:
    alone = service.ask(replace(options, speculation=False), PROMPT)
    got = service.ask(replace(options, lookahead_tokens=6), PROMPT)
    assert got.token_ids == alone.token_ids
    assert got.finish.speculation.num_accepted > 0
    assert service.draft.stats().extra["below.num_steps"] > 0
    service.wait_idle()

"""Three tiers in pools of their own, through gRPC: n-gram look-up, an int8 middle tier, an fp32 target."""

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
    model = str(uneven_model(tmp_path_factory.mktemp("ladder")))
    small = {"kv_tokens": 4096, "num_threads": 1, "resources": {"num_cpus": 0.1}}
    settings: dict[str, object] = {
        "model_name": "ladder",
        "tiers": [
            {"name": "lookup", "drafter": {"kind": "ngram"}, **small},
            {"name": "middle", "model": model, "weights": "int8", "window": 6, **small},
            {"name": "target", "model": model, **small},
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
@pytest.mark.parametrize("k", [1, 4, 16])
def test_three_tiers_give_the_text_of_the_target_alone(service: Service, options: Options, k: int) -> None:
    alone = service.ask(replace(options, speculation=False), PROMPT)
    got = service.ask(replace(options, lookahead_tokens=k), PROMPT)
    assert got.token_ids == alone.token_ids
    assert got.finish.speculation.num_drafted > 0
    assert got.finish.speculation.num_accepted > 0
    service.wait_idle()


def test_unseeded_texts_differ_and_are_drafted(service: Service) -> None:
    texts = {a.token_ids for a in service.all_at_once([Options(temperature=1.2, max_tokens=24)] * 3, PROMPT)}
    assert len(texts) == 3

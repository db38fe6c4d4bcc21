"""Turns of conversations through gRPC: two ingress, two draft and two target replicas, and each finds its past."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from cluster.cli import client
from cluster.cli.client import Completion, Options
from tests.e2e.service import PATIENCE_S, Service, served
from tests.ray.test_target_group import uneven_model

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]

PAGE = 16
TURNS = 4
SHARE = 0.05  # of a later turn's tokens may be computed again, beside the new ones


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    model = str(uneven_model(tmp_path_factory.mktemp("turns"), max_context_tokens=4096))
    small = {
        "model": model, "kv_tokens": 16384, "page_tokens": PAGE, "num_threads": 1, "max_sequences": 8,
        "resources": {"num_cpus": 0.1}, "replicas": {"min": 2, "max": 2},
    }
    settings: dict[str, object] = {
        "model_name": "turns",
        "tiers": [{"name": "draft", **small}, {"name": "target", **small}],
        "speculation": {"draft_timeout_s": 60},
        "limits": {"max_prompt_tokens": 4000, "max_tokens": 400},
        "server": {"num_replicas": 2},
    }
    with served(settings) as running:
        yield running


def ask(service: Service, prompt: list[int], max_tokens: int = 100, speculation: bool = True) -> Completion:
    message = client.request("", Options(temperature=0.0, max_tokens=max_tokens, speculation=speculation), chat=False)
    message.token_ids.ids.extend(prompt)
    message.sampling.ignore_eos = True
    return client.stream(service.stub, message, PATIENCE_S)


@pytest.mark.exactness
def test_a_later_turn_of_a_long_chat_computes_few_of_its_tokens_again_in_either_pool(service: Service) -> None:
    rng = np.random.default_rng(0)
    chats = [rng.integers(4, 260, 900).tolist() for _ in range(3)]
    for turn in range(TURNS):
        for index, chat in enumerate(chats):
            got = ask(service, chat)
            if turn > 0:
                cached = got.finish.speculation.num_cached_prompt_tokens_by_tier
                new = 20
                for tier in (0, 1):
                    assert len(chat) - cached[tier] - new <= SHARE * len(chat), (turn, index, tier)
                assert got.finish.usage.cached_tokens == cached[1]
            chats[index] = [*chat, *got.token_ids, *rng.integers(4, 260, 20).tolist()]
    for chat in chats:
        assert ask(service, chat).token_ids == ask(service, chat, speculation=False).token_ids

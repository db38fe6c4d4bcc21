"""A lossy policy through gRPC: only where it is allowed and asked for, and labelled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.cli.client import Options
from cluster.rpc import outrider_pb2 as pb
from tests.e2e.service import Service, served
from tests.tiny_checkpoint import tiny_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]

PROMPT = "the quick brown fox jumps over"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("lossy")
    small = {"kv_tokens": 4096, "num_threads": 1, "resources": {"num_cpus": 0.1}}
    with served({
        "model_name": "lossy",
        "tiers": [
            {"name": "draft", "model": tiny_checkpoint(folder / "draft", seed=1, num_layers=1), **small},
            {"name": "target", "model": tiny_checkpoint(folder / "target"), **small},
        ],
        "speculation": {"draft_timeout_s": 60, "lossy": {"policy": "typical", "epsilon": 0.001, "delta": 0.001}},
        "limits": {"max_prompt_tokens": 256},
    }) as running:
        yield running


def test_text_is_exact_and_unlabelled_unless_lossy_is_asked_for(service: Service) -> None:
    alone = service.ask(Options(max_tokens=48, speculation=False), PROMPT)
    for options in (Options(max_tokens=48), Options(max_tokens=48, lossy=False)):
        exact = service.ask(options, PROMPT)
        assert exact.token_ids == alone.token_ids
        assert not exact.finish.HasField("lossy_policy")
        assert exact.finish.speculation.num_relaxed == 0
    lossy = service.ask(Options(max_tokens=48, lossy=True), PROMPT)
    assert lossy.finish.lossy_policy == "typical"
    assert lossy.finish.speculation.num_relaxed > 0
    assert lossy.as_json()["lossy_policy"] == "typical"
    service.wait_idle()


def test_the_server_says_what_may_be_asked_for(service: Service) -> None:
    info = service.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (info.lossy_policy, info.lossy_by_default) == ("typical", False)

"""A lossy policy from the request to its label: the ingress over real tiny models, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.build import build_drafter, build_verifier
from actors.loading.tokenizer import load_tokenizer
from cluster.bench.local import LocalTier
from cluster.config import load_config
from cluster.coordinator.ladder import Ladder
from cluster.ingress.admission import Admission
from cluster.ingress.auth import Guard
from cluster.ingress.checks import RequestLimits
from cluster.ingress.convert import RequestDefaults
from cluster.ingress.deployment import Ingress
from cluster.ingress.speculation import coordinator_settings
from cluster.ingress.tokenizing import TextCodec
from cluster.rpc import outrider_pb2 as pb
from cluster.telemetry.watch import IngressWatch
from tests.tiny_checkpoint import tiny_checkpoint

LOSSY = {"policy": "typical", "epsilon": 0.001, "delta": 0.001}


@pytest.fixture(scope="module")
def ingress(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingress]:
    """As its constructor makes it, but for the pools, which are local."""
    folder: Path = tmp_path_factory.mktemp("lossy")
    small: dict[str, Any] = {"kv_tokens": 1024, "num_threads": 1}
    config = load_config({
        "tiers": [
            {"name": "draft", "model": tiny_checkpoint(folder / "draft", seed=1, num_layers=1), **small},
            {"name": "target", "model": tiny_checkpoint(folder / "target"), **small},
        ],
        "speculation": {"lossy": LOSSY, "draft_timeout_s": 60},
    }, environ={})
    draft_spec, target_spec = config.model_specs()
    drafter_spec, lossy = config.drafter_spec(), config.speculation.lossy
    assert drafter_spec is not None and lossy is not None
    drafter, target = build_drafter(draft_spec, drafter_spec), build_verifier(target_spec)
    made = Ingress.__new__(Ingress)
    made._config = config
    made._guard = Guard(None)
    made._codec = TextCodec(load_tokenizer(target_spec.model))
    made._limits = RequestLimits(max_context_tokens=512, max_tokens=128)
    made._defaults = RequestDefaults(32, eos_ids=target.info().eos_ids, lossy=lossy.settings())
    made._lookahead = 4
    made._admission = Admission(4, 4, 30.0)
    made._ladder = Ladder([LocalTier(drafter), LocalTier(target)], settings=coordinator_settings(config))
    nobody: Any = None  # no pool is asked for its metrics
    made._watch = IngressWatch(config, "a", made._admission, [nobody, nobody], None)
    yield made
    drafter.shutdown()
    target.shutdown()


class Status:
    """A call's context, where a failure would be told."""

    def set_code(self, code: object) -> None:
        raise AssertionError(code)

    def set_details(self, details: str) -> None:
        raise AssertionError(details)

    def invocation_metadata(self) -> tuple[()]:
        return ()


def ask(ingress: Ingress, **speculation: bool) -> pb.GenerateResponse:
    request = pb.GenerateRequest(text="the quick brown fox", speculation=pb.SpeculationOptions(**speculation))
    request.sampling.max_tokens = 40
    return asyncio.run(ingress.Generate(request, Status()))


def test_text_is_exact_and_unlabelled_unless_lossy_is_asked_for(ingress: Ingress) -> None:
    alone = [token.id for token in ask(ingress, enabled=False).tokens]
    for asked in ({}, {"lossy": False}):
        exact = ask(ingress, **asked)
        assert [token.id for token in exact.tokens] == alone
        assert not exact.finish.HasField("lossy_policy")
        assert exact.finish.speculation.num_relaxed == 0
    lossy = ask(ingress, lossy=True)
    assert lossy.finish.lossy_policy == "typical"
    assert lossy.finish.speculation.num_relaxed > 0
    assert [token.id for token in lossy.tokens] != alone


def test_the_server_says_what_may_be_asked_for_and_logs_each_use(
    ingress: Ingress, caplog: pytest.LogCaptureFixture
) -> None:
    info = asyncio.run(ingress.GetModelInfo(pb.GetModelInfoRequest(), Status()))
    assert (info.lossy_policy, info.lossy_by_default) == ("typical", False)
    with caplog.at_level("INFO", logger="cluster.ingress.deployment"):
        ask(ingress, lossy=True)
        ask(ingress)
    told = [(record.lossy, record.num_relaxed > 0) for record in caplog.records if "request ended" in record.message]  # type: ignore[attr-defined]
    assert told == [("typical", True), (None, False)]

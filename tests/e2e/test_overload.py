"""More load than there is room for, over a real socket: the excess is told to retry, and nobody else notices."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from cluster.cli import client
from cluster.cli.client import Completion, Options
from cluster.rpc import outrider_pb2 as pb
from tests.e2e.service import PATIENCE_S, Service, served
from tests.ray.test_target_group import uneven_model

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]

PROMPT = "one two three one two three one two"
LONG = Options(temperature=0.8, seed=7, max_tokens=2500)  # seconds of work, however small the model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return uneven_model(tmp_path_factory.mktemp("overload"), max_context_tokens=4096)


def settings(model: Path, places: int, **limits: float) -> dict[str, object]:
    small = {
        "model": str(model), "kv_tokens": 32768, "num_threads": 1, "max_sequences": places,
        "resources": {"num_cpus": 0.1},
    }
    return {
        "model_name": "overload",
        "tiers": [{"name": "draft", **small}, {"name": "target", **small}],
        "speculation": {"draft_timeout_s": 60},
        "limits": {"max_prompt_tokens": 128, "max_tokens": 2500, **limits},
    }


class Streams:
    """Streams that are under way while others are refused."""

    def __init__(self, service: Service, count: int) -> None:
        self._started = threading.Semaphore(0)
        self._threads = ThreadPoolExecutor(count)
        self._running = [self._threads.submit(self._read, service) for _ in range(count)]
        for _ in self._running:
            assert self._started.acquire(timeout=PATIENCE_S)

    def _read(self, service: Service) -> Completion:
        chunks: list[pb.GenerateChunk] = []

        def on_chunk(chunk: pb.GenerateChunk) -> None:
            if not chunks:
                self._started.release()
            chunks.append(chunk)

        message = client.request(PROMPT, LONG, chat=False)
        message.sampling.ignore_eos = True
        return client.stream(service.stub, message, PATIENCE_S, on_chunk)

    def all_running(self) -> bool:
        return not any(each.done() for each in self._running)

    def finish(self) -> list[Completion]:
        completions = [each.result(timeout=PATIENCE_S) for each in self._running]
        self._threads.shutdown()
        return completions


def refused(service: Service, count: int) -> list[grpc.RpcError]:
    """`count` requests at once, all of which are refused."""

    def stream(message: pb.GenerateRequest) -> None:
        list(service.stub.GenerateStream(message, timeout=PATIENCE_S))

    def whole(message: pb.GenerateRequest) -> None:
        service.stub.Generate(message, timeout=PATIENCE_S)

    def ask(unary: bool) -> grpc.RpcError:
        with pytest.raises(grpc.RpcError) as raised:
            (whole if unary else stream)(client.request(PROMPT, LONG, chat=False))
        return raised.value

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(ask, [i % 2 == 0 for i in range(count)]))


def check(errors: list[grpc.RpcError]) -> None:
    for error in errors:
        details = error.details() or ""
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, details
        assert "retry" in details
        assert "\n" not in details


@pytest.fixture
def queueing(model: Path) -> Iterator[Service]:
    """An ingress that runs two requests and lets none wait."""
    with served(settings(model, 8, max_concurrent_requests=2, max_queued_requests=0)) as running:
        yield running


@pytest.fixture
def crowded(model: Path) -> Iterator[Service]:
    """Pools with two places under an ingress that would run more."""
    with served(settings(model, 2, max_concurrent_requests=40, queue_timeout_s=1.0)) as running:
        yield running


def overload(service: Service, excess: int) -> None:
    service.ask(LONG, "warm up")  # everything is loaded and connected
    streams = Streams(service, 2)
    errors = refused(service, excess)
    assert streams.all_running(), "the streams ended before the excess was refused: inconclusive"
    check(errors)
    one, other = streams.finish()
    assert one.token_ids == other.token_ids
    assert len(one.token_ids) == LONG.max_tokens
    assert not one.finish.speculation.num_degraded_by_reason
    service.wait_idle()
    assert service.ask(LONG, PROMPT).token_ids  # there is room again


def test_beyond_its_queue_an_ingress_refuses_at_once(queueing: Service) -> None:
    overload(queueing, 30)


def test_full_replicas_refuse_after_a_bounded_wait(crowded: Service) -> None:
    began = time.monotonic()
    overload(crowded, 12)
    assert time.monotonic() - began < PATIENCE_S

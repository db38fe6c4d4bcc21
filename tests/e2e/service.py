"""The running service as end-to-end tests see it: a client's stub, and each tier's pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from cluster.cli import client, local, models
from cluster.cli.client import Completion, Options
from cluster.cli.serve import with_ports
from cluster.config import load_config
from cluster.pools import LeaseGrant
from cluster.rpc import outrider_pb2 as pb

PATIENCE_S = 240.0  # of ordinary requests
REBUILD_S = 300.0  # of a request whose target dies: the group loads its model again
FREED_S = 15.0  # after a client left, the pools hold nothing of it within this time


@dataclass(frozen=True)
class Pool:
    """A tier's deployment, as the coordinator sees it."""

    handle: Any

    def num_leases(self) -> int:
        return int(self.handle.num_leases.remote().result(timeout_s=30))

    def stats(self) -> Any:
        return self.handle.stats.remote().result(timeout_s=30)

    def pid(self) -> int:
        """Process id of the actor that takes calls."""
        return int(self.handle.leader_pid.remote().result(timeout_s=30))

    def wait_ready(self, within_s: float = REBUILD_S) -> None:
        """Until a lease is granted, which is given back at once."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            stream = self.handle.options(stream=True).lease.remote("probe")
            try:
                first = next(iter(stream))
            finally:
                stream.cancel()
            if isinstance(first, LeaseGrant):
                return
            time.sleep(0.5)
        pytest.fail(f"no lease within {within_s:g} s: {first}")

    def idle(self) -> bool:
        """Nobody holds it and every page is free (some may still be of use for their prefix)."""
        stats = self.stats()
        return self.num_leases() == 0 and stats.num_sequences == 0 and stats.num_free_pages == stats.num_pages


@dataclass(frozen=True)
class Service:
    """The running service."""

    stub: Any
    draft: Pool
    target: Pool
    grpc: str  # host:port
    http: str  # http://host:port

    def ask(
        self, options: Options, prompt: str, *, timeout_s: float = PATIENCE_S,
        on_chunk: Callable[[pb.GenerateChunk], None] = lambda chunk: None,
    ) -> Completion:
        return client.stream(self.stub, client.request(prompt, options), timeout_s, on_chunk)

    def all_at_once(self, options: Sequence[Options], prompt: str) -> list[Completion]:
        with ThreadPoolExecutor(len(options)) as threads:
            return list(threads.map(lambda each: self.ask(each, prompt), options))

    def wait_idle(self, within_s: float = FREED_S) -> None:
        end = time.monotonic() + within_s
        while not (self.draft.idle() and self.target.idle()):
            if time.monotonic() > end:
                held = [(pool.num_leases(), pool.stats()) for pool in (self.draft, self.target)]
                pytest.fail(f"still held after {within_s:g} s (leases and counters of draft, target): {held}")
            time.sleep(0.2)


@contextmanager
def served(preset: str | dict[str, object]) -> Iterator[Service]:
    """The preset (or settings) on a Ray of its own, on free ports; afterwards none of its processes is left."""
    config = with_ports(load_config(preset), *local.free_ports(2))
    models.prepare(config)
    with local.running(config):
        from ray import serve  # late: `running` prepares the environment that Ray reads at import

        pools = [
            Pool(serve.get_deployment_handle(f"tier{index}-{tier.name}", local.APPLICATION))
            for index, tier in enumerate(config.tiers) if not tier.inline
        ]
        grpc, http = (f"{local.LOOPBACK}:{port}" for port in (config.server.grpc_port, config.server.http_port))
        with client.connect(grpc) as stub:
            yield Service(stub, pools[0], pools[-1], grpc, f"http://{http}")
    assert workers() == []


def workers(kind: str = "") -> list[int]:
    """Process ids of Ray workers below this process, by the actor class in the title that Ray gives them."""
    pids = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            if process.cmdline()[:1] and process.cmdline()[0].startswith(f"ray::{kind}"):
                pids.append(process.pid)
    return pids


class Once:
    """Runs an action when a stream has shown `after` tokens, and goes on reading."""

    def __init__(self, action: Callable[[], None], after: int) -> None:
        self._action: Callable[[], None] | None = action
        self._after = after
        self._seen = 0

    def __call__(self, chunk: pb.GenerateChunk) -> None:
        self._seen += len(chunk.tokens)
        if self._seen >= self._after and self._action is not None:
            assert not chunk.HasField("finish"), "the stream ended before the blow: inconclusive"
            action, self._action = self._action, None
            action()

    @property
    def done(self) -> bool:
        return self._action is None

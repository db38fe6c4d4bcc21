"""Several nodes (raylets of one machine with resources of their own): pools land on their groups, and move there."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from cluster.cli import client, local
from cluster.cli.client import Options
from cluster.cli.serve import with_ports
from cluster.config import load_config
from cluster.rpc import outrider_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.ray, pytest.mark.slow]

GROUPS = {"draft_node": "DraftActor", "target_node": "RankWorker"}  # resource -> what runs on its nodes
PROMPT = "Name the rivers that a ferryman knows."
MOVED_S = 120.0


@dataclass(frozen=True)
class Cluster:
    """The nodes by group, and a client of the service."""

    nodes: dict[str, list[Any]]
    ray_cluster: Any
    stub: Any

    def homes(self, group: str) -> set[str]:
        """Ids of the nodes on which actors of the group live."""
        from ray._private import state

        return {
            actor["Address"]["NodeID"] for actor in state.actors().values()
            if actor["State"] == "ALIVE" and actor["ActorClassName"] == GROUPS[group]
        }

    def ids(self, group: str) -> set[str]:
        return {node.node_id for node in self.nodes[group]}

    def lose(self, group: str) -> None:
        """The machine that the group's actors are on is gone; the group has another."""
        (home,) = self.homes(group)
        (lost,) = [node for node in self.nodes[group] if node.node_id == home]
        self.ray_cluster.remove_node(lost, allow_graceful=False)
        self.nodes[group].remove(lost)

    def wait_moved(self, group: str) -> None:
        end = time.monotonic() + MOVED_S
        while not (self.homes(group) and self.homes(group) <= self.ids(group)):
            assert time.monotonic() < end, f"{group}: actors on {self.homes(group)}, nodes {self.ids(group)}"
            time.sleep(0.5)

    def write(self, max_tokens: int, *, speculation: bool = True) -> str:
        request = client.request(PROMPT, Options(temperature=0.0, max_tokens=max_tokens, speculation=speculation))
        request.sampling.ignore_eos = True
        return client.stream(self.stub, request, MOVED_S, _ignore).text


def _ignore(chunk: pb.GenerateChunk) -> None:
    """Only the whole text counts."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = load_config("emulated-70b", environ={}).model_dump(mode="json")
    for tier, resource in zip(settings["tiers"], GROUPS, strict=True):
        tier["resources"]["custom"] = {resource: 1}
    config = with_ports(load_config(settings, environ={}), *local.free_ports(2))
    local.prepare_environment()
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster as RayCluster

    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temp_dir,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", temp_dir)  # else it notes the cluster's address for every other Ray of the machine
        common = {"node_ip_address": local.LOOPBACK, "object_store_memory": 10**8}
        head = {"num_cpus": 4, "include_dashboard": False, "temp_dir": temp_dir, **common}
        ray_cluster = RayCluster(initialize_head=True, head_node_args=head)
        nodes = {
            resource: [
                ray_cluster.add_node(num_cpus=1, resources={resource: 1}, **common)
                for _ in range(2)
            ] for resource in GROUPS
        }
        ray.init(address=ray_cluster.address, log_to_driver=False)
        try:
            serve.start(
                proxy_location="HeadOnly",  # the other nodes have the same ports
                http_options={"host": config.server.host, "port": config.server.http_port},
                grpc_options={"port": config.server.grpc_port, "grpc_servicer_functions": [local.SERVICER]},
            )
            local.deploy(config)
            with client.connect(f"{local.LOOPBACK}:{config.server.grpc_port}") as stub:
                yield Cluster(nodes, ray_cluster, stub)
        finally:
            serve.shutdown()
            ray.shutdown()
            ray_cluster.shutdown()


def test_pools_land_on_the_nodes_of_their_group(cluster: Cluster) -> None:
    for group in GROUPS:
        homes = cluster.homes(group)
        assert len(homes) == 1
        assert homes <= cluster.ids(group)


@pytest.mark.parametrize("group", [*GROUPS])
def test_a_lost_node_moves_its_pool_within_the_group_and_no_text_changes(cluster: Cluster, group: str) -> None:
    alone = cluster.write(300, speculation=False)
    with ThreadPoolExecutor(2) as threads:
        streams = [threads.submit(cluster.write, 300, speculation=on) for on in (True, False)]
        time.sleep(1.0)
        cluster.lose(group)
        assert [stream.result(MOVED_S) for stream in streams] == [alone, alone]
    cluster.wait_moved(group)
    assert alone.startswith(cluster.write(64))

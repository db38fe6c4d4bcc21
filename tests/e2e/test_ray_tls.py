"""Ray's own TLS (RAY_USE_TLS) between nodes of a real cluster: all still works, and Outrider's wire is encrypted."""

from __future__ import annotations

import multiprocessing
import os
import socket
import ssl
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
import pytest

from cluster.cli import local
from tests.certificates import Authority
from tests.e2e.test_nodes import LONG, NODES, cluster

pytestmark = [pytest.mark.e2e, pytest.mark.ray, pytest.mark.thorough]

WAIT_S = 10.0


def own_addresses() -> list[str]:
    """IPv4 addresses of this machine, on which its raylets may be."""
    return [each.address for found in psutil.net_if_addrs().values() for each in found
            if each.family == socket.AF_INET]


def speaks_tls(host: str, port: int) -> bool:
    """Whether a handshake with Ray's certificates succeeds there, as both sides check them."""
    context = ssl.create_default_context(cafile=os.environ["RAY_TLS_CA_CERT"])
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    try:
        with socket.create_connection((host, port), WAIT_S) as plain, context.wrap_socket(plain, server_hostname=host):
            return True
    except (ssl.SSLError, ConnectionError, TimeoutError):
        return False


def served() -> None:
    """The checks, in a process whose Ray read the environment at its start."""
    with cluster() as running:
        import ray
        from ray import serve

        assert running.wait_home("target") == ["target-a"] * 2
        (home,) = running.wait_home("draft")
        assert NODES[home] == "draft"
        alone = running.write(LONG, speculation=False)
        written = running.write(LONG)
        assert written.token_ids == alone.token_ids
        assert written.finish.speculation.num_accepted > 0

        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        assert speaks_tls(host, int(port)), "Ray itself"
        for pool in ("tier0-draft", "tier1-target"):
            lease = serve.get_deployment_handle(pool, local.APPLICATION).options(stream=True).lease.remote("probe")
            endpoint = next(iter(lease)).endpoint
            assert speaks_tls(endpoint.host, endpoint.port), f"the wire to {pool}"
            lease.cancel()


def test_a_cluster_of_several_nodes_serves_with_tls_in_ray_and_on_the_wire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    node = authority.signed("node", addresses=own_addresses())
    for name, value in {
        "RAY_USE_TLS": "1", "RAY_TLS_SERVER_CERT": str(node.cert), "RAY_TLS_SERVER_KEY": str(node.key),
        "RAY_TLS_CA_CERT": str(authority.cert),
    }.items():
        monkeypatch.setenv(name, value)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        fresh.submit(served).result(300)

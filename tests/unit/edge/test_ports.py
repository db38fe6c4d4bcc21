"""Behind HAProxy gRPC is open to this machine alone."""

from __future__ import annotations

import pytest
from ray._common.utils import import_attr
from ray.serve._private import constants, default_impl

from cluster.edge import ports
from cluster.edge.ports import narrow_grpc


class Server:
    """Keeps the addresses that it is to listen on."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def add_insecure_port(self, address: str) -> None:
        self.addresses.append(address)


def test_only_loopback_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_impl, "add_grpc_address", default_impl.add_grpc_address)  # put back afterwards
    assert narrow_grpc() == []
    server = Server()
    default_impl.add_grpc_address(server, "[::]:40000")  # as Serve's `start_grpc_server` does
    assert server.addresses == ["127.0.0.1:40000"]


def test_another_serve_is_told_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delattr(default_impl, "add_grpc_address")
    assert narrow_grpc() == []
    assert "close them with a firewall" in caplog.text


def test_serve_finds_it_by_the_variable_that_is_set() -> None:
    assert hasattr(constants, ports.CALLBACK)
    assert import_attr(ports.NARROW) is narrow_grpc

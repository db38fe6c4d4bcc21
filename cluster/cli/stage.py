"""Services one after the other on one local Ray, which starts with the first of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cluster.cli import local, models
from cluster.cli.serve import with_ports
from cluster.config import Config, ServerConfig

if TYPE_CHECKING:  # imported late: the bench pulls in numpy and gRPC
    from cluster.bench.serve.service import Service

NUM_CPUS = 16  # logical: the tiers of a bench claim shares of one


class LocalStage:
    """A `cluster.bench.ladder.stage.Stage` on this machine. Close it to leave nothing behind."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._ports = local.free_ports(2)
        self._stack = contextlib.ExitStack()
        self._started = False

    @contextlib.contextmanager
    def services(self, configs: Mapping[str, Config]) -> Iterator[Mapping[str, Service]]:
        """See `Stage.services`. Raises `CommandError` when one does not start."""
        from cluster.bench.serve.service import Service, serve_pools

        self._start()
        from ray import serve  # reads its environment at import, which `_start` has prepared

        named = {name: with_ports(config, *self._ports) for name, config in configs.items()}
        try:
            for name, config in named.items():
                models.prepare(config)
                local.deploy(config, name, f"/{name}")
            address = f"{local.LOOPBACK}:{self._ports[0]}"
            yield {
                name: Service(address, config, serve_pools(config, name), application=name)
                for name, config in named.items()
            }
        finally:
            for name in named:
                serve.delete(name)

    def _start(self) -> None:
        if self._started:
            return
        grpc_port, http_port = self._ports
        server = ServerConfig(grpc_port=grpc_port, http_port=http_port)
        cpus = max(NUM_CPUS, os.cpu_count() or 1)
        self._stack.enter_context(local.platform(server, cpus, {}, verbose=self._verbose))
        self._started = True

    def close(self) -> None:
        """Stop Ray."""
        self._stack.close()

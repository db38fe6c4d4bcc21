"""Recording the launches of a step once and replaying them: what a small step costs is the launching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class Graph(Protocol):
    """A recorded body."""

    def replay(self) -> None:
        """Do what the body did, on what its tensors hold now."""
        ...


class GraphMaker(Protocol):
    """Records bodies that read and write tensors at fixed addresses and never look at values on the host."""

    def capture(self, body: Callable[[], None]) -> Graph:
        """Record `body`. RuntimeError if it cannot be recorded."""
        ...


class CudaGraphs:
    """CUDA graphs that share one memory pool: they are replayed one at a time and keep nothing between replays."""

    def __init__(self, device: str) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, body: Callable[[], None]) -> Graph:
        """See `GraphMaker`."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            body()  # compiles kernels and lets libraries set themselves up: neither is allowed in a capture
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads (transfers, collectives' watchdogs) may call CUDA meanwhile: only this one is recorded.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            body()
        return graph

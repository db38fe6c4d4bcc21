"""A client of `outrider.v1` for Python programs, synchronous and asynchronous.

    from cluster.client import Client, Options

    with Client("127.0.0.1:9000") as client:
        for chunk in client.stream("Name three rivers.", Options(seed=7, max_tokens=60)):
            print(chunk.text, end="", flush=True)

Needs grpcio and protobuf only, no model.
"""

from cluster.client.aio import AsyncClient, AsyncStream
from cluster.client.attempts import CallFailed, Retry
from cluster.client.requests import Options, Prompt, Raw
from cluster.client.results import Chunk, Finish, FinishReason, Generation, Origin, Token, Usage
from cluster.client.sync import Client, Stream
from cluster.edge.access import Access

__all__ = [
    "Access", "AsyncClient", "AsyncStream", "CallFailed", "Chunk", "Client", "Finish", "FinishReason", "Generation",
    "Options", "Origin", "Prompt", "Raw", "Retry", "Stream", "Token", "Usage",
]

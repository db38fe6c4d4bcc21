"""How clients reach a service: options that fit together, and a token that travels only where nobody reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from cluster.cli.main import app
from cluster.edge.access import Access, BadAccess, access, reached
from cluster.rpc import outrider_pb2 as pb
from cluster.rpc import outrider_pb2_grpc
from tests.certificates import Authority, Pair


class Recorder(outrider_pb2_grpc.OutriderServicer):
    """Keeps what came as `authorization`."""

    def __init__(self) -> None:
        self.seen: list[str | bytes | None] = []

    def GetModelInfo(self, request: object, context: grpc.ServicerContext) -> pb.GetModelInfoResponse:
        self.seen.append(dict(context.invocation_metadata()).get("authorization"))
        return pb.GetModelInfoResponse(model="m")

    def GenerateStream(self, request: object, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        self.seen.append(dict(context.invocation_metadata()).get("authorization"))
        yield pb.GenerateChunk(text="hi", finish=pb.Finish())


class World:
    """A server over mutual TLS and its plaintext twin."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.mine = self.authority.signed("mine")
        service = self.authority.signed("service")
        self.recorder = Recorder()
        self.server = grpc.server(ThreadPoolExecutor(2))
        outrider_pb2_grpc.add_OutriderServicer_to_server(self.recorder, self.server)  # type: ignore[no-untyped-call]
        credentials = grpc.ssl_server_credentials(
            [(service.key.read_bytes(), service.cert.read_bytes())], self.authority.cert.read_bytes(), True
        )
        self.secure = f"localhost:{self.server.add_secure_port('127.0.0.1:0', credentials)}"
        self.plain = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    found = World(tmp_path_factory.mktemp("access"))
    yield found
    found.server.stop(None)


@pytest.fixture
def mine(world: World) -> Pair:
    return world.mine


def test_token_and_certificate_reach_the_server_by_both_kinds_of_channel(
    world: World, mine: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "t1")
    secure = access(world.secure, tls_ca=world.authority.cert, cert=mine.cert, key=mine.key, token_env="MY_TOKEN")
    plain = access(world.plain, token_env="MY_TOKEN")
    world.recorder.seen.clear()
    for each in (secure, plain):
        with each.channel() as channel:
            stub = outrider_pb2_grpc.OutriderStub(channel)  # type: ignore[no-untyped-call]
            assert stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=20).model == "m"
            assert [c.text for c in stub.GenerateStream(pb.GenerateRequest(), timeout=20)] == ["hi"]
        asyncio.run(_aio(each))
    assert world.recorder.seen == ["Bearer t1"] * 8


async def _aio(each: Access) -> None:
    async with each.aio_channel() as channel:
        stub = outrider_pb2_grpc.OutriderStub(channel)  # type: ignore[no-untyped-call]
        assert (await stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=20)).model == "m"
        assert [c.text async for c in stub.GenerateStream(pb.GenerateRequest(), timeout=20)] == ["hi"]


def test_the_token_of_the_environment_is_used_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_TOKEN", "a")
    monkeypatch.setenv("OTHER", "b")
    assert access("localhost:1").token == "a"
    assert access("localhost:1", token_env="OTHER").token == "b"
    assert "token" not in repr(access("localhost:1"))
    assert reached("h:1") == Access("h:1")


@pytest.mark.parametrize(("options", "part"), [
    ({"cert": Path("x")}, "--cert and --key belong together"),
    ({"tls_ca": Path("/none/ca.pem")}, "--tls-ca /none/ca.pem: cannot be read"),
    ({"tls_ca": Path(__file__)}, "test_access.py: holds nothing in PEM form"),
    ({"address": "example.com"}, "--address example.com names no port; write example.com:9000"),
    ({"token_env": "NOT_SET"}, "--token-env NOT_SET: this environment variable is not set"),
    ({"token_env": "BROKEN"}, "holds characters that no token has"),
    ({"token_env": "MY_TOKEN"}, "would travel to example.com:9000 in plaintext"),
])  # fmt: skip
def test_each_mistake_is_one_sentence(
    options: dict[str, object], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "t")
    monkeypatch.setenv("BROKEN", "t\n")
    with pytest.raises(BadAccess) as bad:
        access(**{"address": "example.com:9000", **options})  # type: ignore[arg-type]
    assert part in str(bad.value)
    assert access("example.com:9000", tls=True, token_env="MY_TOKEN").tls


def test_commands_take_the_options_and_tell_mistakes_in_one_line(world: World, mine: Pair) -> None:
    secure = ["--address", world.secure, "--tls-ca", str(world.authority.cert)]
    good = CliRunner().invoke(app, ["generate", "x", *secure, "--cert", str(mine.cert), "--key", str(mine.key)])
    assert (good.exit_code, good.stdout.strip()) == (0, "hi"), good.stderr
    bad = CliRunner().invoke(app, ["generate", "x", *secure, "--cert", str(mine.cert)])
    assert (bad.exit_code, bad.stderr.count("\n")) == (1, 1)
    refused = CliRunner().invoke(app, ["generate", "x", *secure])
    assert refused.exit_code == 1

"""The service behind mutual TLS with tokens, as real clients meet it: who may come in, and what listens where."""

from __future__ import annotations

import http.client
import os
import ssl
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from cluster.cli import client
from cluster.cli.client import Options
from cluster.edge.access import Access
from cluster.ingress.tokens import new_token
from cluster.rpc import outrider_pb2 as pb
from tests.certificates import Authority
from tests.e2e.secure.service import WAIT_S, Secured
from tests.e2e.service import workers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

OK, UNAUTHENTICATED = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED
UNAVAILABLE, EXHAUSTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED


def status(access: Access, message: pb.GenerateRequest | None = None) -> tuple[grpc.StatusCode, str]:
    """What becomes of one short request."""
    asked = client.request("hello", Options(max_tokens=3), chat=False) if message is None else message
    with client.connect(access) as stub:
        try:
            stub.Generate(asked, timeout=WAIT_S)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""  # type: ignore[attr-defined]
    return OK, ""


def test_who_has_a_certificate_and_a_token_is_served_over_both_calls(secured: Secured) -> None:
    assert status(secured.access) == (OK, "")
    with client.connect(secured.access) as stub:
        answer = client.stream(stub, client.request("hello", Options(max_tokens=5), chat=False), WAIT_S)
        assert len(answer.token_ids) >= 1
        assert stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=WAIT_S).model == "outrider"


def test_plaintext_strangers_and_clients_without_a_certificate_are_refused(secured: Secured, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other").signed("stranger")
    wrong = [
        Access(secured.access.address, token=secured.access.token),  # plaintext
        replace(secured.access, certificate=None, key=None),
        replace(secured.access, certificate=other.cert.read_bytes(), key=other.key.read_bytes()),
        replace(secured.access, authorities=(tmp_path / "other.pem").read_bytes()),  # a client that knows another
    ]
    assert [status(access)[0] for access in wrong] == [UNAVAILABLE] * len(wrong)


def test_without_a_valid_token_every_method_ends_unauthenticated(secured: Secured) -> None:
    for token in (None, "nonsense", new_token("alice")[0]):
        access = replace(secured.access, token=token)
        code, details = status(access)
        assert code is UNAUTHENTICATED
        assert "send `authorization: Bearer TOKEN`" in details
        with client.connect(access) as stub:
            for call in (lambda s=stub: s.GetModelInfo(pb.GetModelInfoRequest(), timeout=WAIT_S),
                         lambda s=stub: list(s.GenerateStream(pb.GenerateRequest(text="x"), timeout=WAIT_S))):
                with pytest.raises(grpc.RpcError) as refused:
                    call()
                assert refused.value.code() is UNAUTHENTICATED


def test_a_token_of_one_request_at_once_is_free_again_when_its_stream_ends_or_is_cancelled(secured: Secured) -> None:
    access = replace(secured.access, token=secured.slow)
    long = client.request("hello", Options(max_tokens=200), chat=False)
    long.sampling.ignore_eos = True
    with client.connect(access) as stub:
        call: Any = stub.GenerateStream(long, timeout=WAIT_S)
        next(iter(call))
        code, details = status(access)
        assert (code, "'slow' has 1 requests running" in details) == (EXHAUSTED, True)
        assert status(secured.access)[0] is OK, "another token is not concerned"
        call.cancel()
        freed = threading.Event()
        for _ in range(100):
            if status(access)[0] is OK:
                break
            freed.wait(0.1)
        else:
            pytest.fail("the place of a cancelled stream was not freed")
    assert status(access)[0] is OK


def test_a_message_that_is_too_large_is_refused_before_it_is_read(secured: Secured) -> None:
    code, details = status(secured.access, pb.GenerateRequest(text="x" * 70_000))
    assert code is EXHAUSTED
    assert "larger than" in details
    assert status(secured.access)[0] is OK


def test_http_speaks_tls_to_clients_with_a_certificate_only(secured: Secured) -> None:
    context = ssl.create_default_context(cafile=str(secured.authority.cert))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _get(secured, context)
    context.load_cert_chain(secured.mine.cert, secured.mine.key)
    assert _get(secured, context) == 200
    plain = http.client.HTTPConnection("localhost", secured.config.server.http_port, timeout=WAIT_S)
    plain.request("GET", "/-/healthz")
    with pytest.raises((http.client.BadStatusLine, ConnectionError)):
        plain.getresponse()


def _get(secured: Secured, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection(
        "localhost", secured.config.server.http_port, context=context, timeout=WAIT_S
    )
    try:
        connection.request("GET", "/-/healthz")
        return connection.getresponse().status
    finally:
        connection.close()


def test_haproxy_listens_on_loopback_and_its_files_are_private(secured: Secured) -> None:
    proxies = [p for p in psutil.Process().children(recursive=True) if p.name() == "haproxy"]
    assert proxies
    hosts = {c.laddr.ip for p in proxies for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert hosts == {"127.0.0.1"}
    serving = [psutil.Process(pid) for kind in ("ServeReplica:outrider:ingress", "ProxyActor") for pid in workers(kind)]
    assert len(serving) == 2
    ports = {int(os.environ[f"RAY_SERVE_{which}_{kind}_PORT"])
             for which in ("FALLBACK_PROXY", "DIRECT_INGRESS_MIN") for kind in ("HTTP", "GRPC")}
    behind = {(c.laddr.ip.removeprefix("::ffff:"), c.laddr.port) for p in serving for c in p.net_connections("tcp")
              if c.status == psutil.CONN_LISTEN and c.laddr.port in ports}
    assert {host for host, _ in behind} == {"127.0.0.1"}, "TLS must not be gone round"
    assert len(behind) >= 3
    config = Path(proxies[0].cmdline()[proxies[0].cmdline().index("-f") + 1])
    assert stat.S_IMODE((config.parent / "tls.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((config.parent / "admin.sock").stat().st_mode) == 0o600

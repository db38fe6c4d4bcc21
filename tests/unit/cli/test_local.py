"""Starting and stopping: ports, resources, error text, processes. Without Ray."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from typer.testing import CliRunner

from cluster.cli import local, processes
from cluster.cli.main import app
from cluster.cli.output import CommandError
from cluster.cli.serve import ladder, reach, with_ports, with_tls
from cluster.config import ConfigError, ServerConfig, load_config
from cluster.config_tls import TlsConfig

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = [
    sys.executable, "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]  # fmt: skip


def test_free_ports_are_distinct_and_a_taken_port_is_refused_with_its_setting() -> None:
    first, second = local.free_ports(2)
    assert first != second
    local.require_free(first, "server.grpc_port")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        with pytest.raises(CommandError, match=rf"port {first} is taken.*server\.grpc_port"):
            local.require_free(first, "server.grpc_port")


def test_free_ports_are_none_that_a_connection_may_be_given() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    found = local.free_ports(20)
    assert len(set(found)) == 20
    assert max(found) < min(lowest, local.BLOCKS[0])


def test_a_proxy_that_lost_its_port_is_told_in_one_line() -> None:
    said = "[ALERT] (1) : Binding [/x/haproxy.cfg:4]\ncannot bind socket (Address already\nin use) for [127.0.0.1:59]\n"
    assert local._proxy_reason(said) == "another process took 127.0.0.1:59 meanwhile; try again"
    assert local._proxy_reason("Traceback:\nValueError: no\n") == "ValueError: no"


def test_a_block_of_ports_is_free_and_no_other_service_has_one_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = local.free_block()
    assert last - first + 1 == local.BLOCK_PORTS
    monkeypatch.setattr(local, "BLOCKS", (first, last + 1))  # this one or none
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as an ingress replica opens its port
        taken.bind(("0.0.0.0", first + 3))
        taken.listen()
        with pytest.raises(CommandError, match="stop other services"):
            local.free_block()


def test_local_resources_hold_every_rank_of_every_replica() -> None:
    tier = {"model": "builtin:smollm2", "resources": {"num_cpus": 4, "custom": {"fast": 1}}}
    target = {"name": "target", **tier, "tensor_parallel_size": 2, "replicas": {"max": 3}}
    tiers = [{"name": "draft", **tier}, target]
    num_cpus, custom = local.local_resources(load_config({"tiers": tiers}, environ={}))
    assert num_cpus >= 28
    assert custom == {"fast": 7.0}


def test_environment_gets_a_token_but_never_replaces_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", os.environ["PATH"])
    local.prepare_environment()
    token = os.environ["RAY_AUTH_TOKEN"]
    assert len(token) == 64
    local.prepare_environment()
    assert os.environ["RAY_AUTH_TOKEN"] == token
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name)


def test_root_cause_is_the_last_exception_of_a_traceback() -> None:
    text = 'Traceback:\nray.exceptions.RayTaskError: x\n    raise E\nValueError: no model at /m; fix it\n'
    assert local.root_cause(text) == "ValueError: no model at /m; fix it"
    assert local.root_cause("just\n words") == "just words"


def test_processes_end_even_when_they_ignore_the_request() -> None:
    with subprocess.Popen(SLEEP) as polite, subprocess.Popen(STUBBORN, stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        mine = [p for p in processes.descendants() if p.pid in (polite.pid, stubborn.pid)]
        assert processes.end(mine, grace_s=0.5) == 1
        assert not psutil.pid_exists(stubborn.pid) or psutil.Process(stubborn.pid).status() == "zombie"


def test_processes_are_found_by_a_unique_argument(tmp_path: os.PathLike[str]) -> None:
    with subprocess.Popen([*SLEEP, str(tmp_path)]) as process:
        try:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and not processes.mentioning(str(tmp_path)):
                time.sleep(0.05)
            assert [p.pid for p in processes.mentioning(str(tmp_path))] == [process.pid]
        finally:
            process.kill()


def test_a_hanging_shutdown_step_is_left_after_its_bound() -> None:
    assert processes.bounded(lambda: None, 5)
    assert not processes.bounded(lambda: time.sleep(30), 0.1)


def test_sigterm_interrupts_like_ctrl_c_and_handlers_come_back() -> None:
    former = signal.getsignal(signal.SIGTERM)
    with processes.interruptible():
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # the signal arrives between the statements
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        processes.ignore_interrupts()
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is former


def test_ports_are_overridden_and_checked_again() -> None:
    config = load_config("smollm2", environ={})
    assert with_ports(config, 5001, None).server.grpc_port == 5001
    assert with_ports(config, None, None) == config
    with pytest.raises(ValueError, match="another http_port"):
        with_ports(config, 5001, 5001)


def test_tls_files_given_on_the_command_line_replace_those_of_the_file() -> None:
    config = load_config("smollm2", environ={})
    changed = with_tls(config, "c.pem", "k.pem", None)
    assert changed.server.tls is not None
    assert with_tls(changed, None, "other.key", "ca.pem").server.tls == TlsConfig(
        cert="c.pem", key="other.key", client_ca="ca.pem"
    )
    assert with_tls(config, None, None, None) == config
    with pytest.raises(ConfigError, match="server.tls.key: is required"):
        with_tls(config, "c.pem", None, None)


def test_what_is_open_to_others_is_said() -> None:
    config = load_config("smollm2", environ={})
    assert len(reach(config)) == 1
    wide = load_config({"preset": "smollm2", "server": {"host": "0.0.0.0"}}, environ={})
    told = reach(wide)
    assert ["warning" in line for line in told] == [False, True, True]
    assert "plaintext" in told[1] and "whoever" in told[2]
    assert len(reach(with_tls(wide, "c", "k", "ca"))) == 1
    assert len(reach(with_tls(wide, "c", "k", None))) == 2


def test_the_environment_of_one_service_is_gone_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_TLS_CLIENT_CA", "of-the-user")
    before = dict(os.environ)
    with local.environment(ServerConfig(tls=TlsConfig(cert="c.pem", key="k.pem"), max_message_bytes=65536), tmp_path):
        assert os.environ["OUTRIDER_TLS_CERT"] == str(Path("c.pem").absolute())
        assert "OUTRIDER_TLS_CLIENT_CA" not in os.environ, "clients need no certificate here"
        assert os.environ["RAY_SERVE_GRPC_MAX_MESSAGE_SIZE"] == "65536"
        assert os.access(os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"], os.X_OK)
    assert dict(os.environ) == before


def test_ladder_names_every_tier() -> None:
    config = load_config("smollm2", environ={})
    assert ladder(config).row_count == len(config.tiers)


def test_a_ray_that_this_process_runs_already_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "ray", ray)
    grpc, http = local.free_ports(2)
    server = with_ports(load_config("smollm2", environ={}), grpc, http).server
    with pytest.raises(CommandError, match="runs Ray already"), local.platform(server, 1, {}):
        pass


def test_serve_refuses_an_unknown_configuration_in_one_line() -> None:
    result = CliRunner().invoke(app, ["serve", "no-such-thing.yaml"])
    assert result.exit_code == 1
    assert "no such file or preset" in result.stderr
    assert result.stderr.count("\n") == 1

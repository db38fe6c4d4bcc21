"""Starting and stopping: ports, resources, error text, processes. Without Ray."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from typer.testing import CliRunner

from cluster.cli import local, processes
from cluster.cli.main import app
from cluster.cli.output import CommandError
from cluster.cli.serve import ladder, with_ports
from cluster.config import load_config

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


def test_ladder_names_every_tier() -> None:
    config = load_config("smollm2", environ={})
    assert ladder(config).row_count == len(config.tiers)


def test_serve_refuses_an_unknown_configuration_in_one_line() -> None:
    result = CliRunner().invoke(app, ["serve", "no-such-thing.yaml"])
    assert result.exit_code == 1
    assert "no such file or preset" in result.stderr
    assert result.stderr.count("\n") == 1

"""A local Ray with the Serve application on it, for as long as a command needs it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import math
import os
import random
import re
import secrets
import shlex
import socket
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from cluster.cli import head, processes
from cluster.cli.output import CommandError
from cluster.config import Config, ServerConfig
from cluster.config_auth import make_guard
from cluster.edge import haproxy as edge
from cluster.edge import ports

GRACE_S = 10.0  # running requests may end within this time of an interrupt
SHUTDOWN_TIMEOUT_S = 30.0  # per step: Serve, then Ray; beyond it processes are killed
SERVICER = "cluster.ingress.servicer.add_OutriderServicer_to_server"
APPLICATION = "outrider"
LOOPBACK = "127.0.0.1"
LONGEST_FOLDER = 26  # sockets of HAProxy add 57 for the node, and 24; a path has 107 characters at most
SINGLES = (12_000, 20_000)  # where single ports are sought
BLOCKS = (20_000, 32_000)  # where the ports of ingress replicas are sought
BLOCK_PORTS = 50  # one for each replica that is there or was lately


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, below those that systems hand out: some connection of Ray might get one of these
    before it is listened on."""
    ports: list[int] = []
    for port in random.sample(range(*SINGLES), SINGLES[1] - SINGLES[0]):  # services that start together differ
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("0.0.0.0", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise CommandError(f"no {count} ports are free from {SINGLES[0]} to {SINGLES[1]}: stop other services")


def free_block() -> tuple[int, int]:
    """First and last of `BLOCK_PORTS` ports in a row that nobody listens on now, below those that systems hand out."""
    starts = list(range(*BLOCKS, BLOCK_PORTS))
    random.shuffle(starts)  # services that start at the same time choose different ones
    for start in starts:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(start, start + BLOCK_PORTS):
                stack.enter_context(socket.socket()).bind(("0.0.0.0", port))
            return start, start + BLOCK_PORTS - 1
    raise CommandError(f"no {BLOCK_PORTS} ports in a row are free from {BLOCKS[0]} to {BLOCKS[1]}: stop other services")


def require_free(port: int, setting: str) -> None:
    """Raises `CommandError` when somebody listens on the port already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            raise CommandError(f"port {port} is taken; set another one as {setting}") from None


def prepare_environment() -> None:
    """What Ray reads at import. A token in the environment keeps it from writing one into HOME."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The ingress answers gRPC itself, behind an HAProxy that listens on `server.host`. Serve's own proxy (set 0) takes
    # each chunk of a stream through another Python process, and listens on all interfaces.
    os.environ.setdefault("RAY_SERVE_ENABLE_HA_PROXY", "1")
    os.environ.setdefault("RAY_SERVE_PROXY_USE_GRPC", "1")
    os.environ.setdefault("RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD", "0")
    os.environ.setdefault("RAY_SERVE_HAPROXY_NBTHREAD", "1")
    # Not Ray's 15: the threads that compute step back by themselves, so that those that carry calls run at once.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # What Ray's GCS remembers of the past: each request makes a dozen calls of actors, each replacement is an actor,
    # and by itself it would keep 100,000 of either that have ended: 400 MiB.
    os.environ.setdefault("RAY_task_events_max_num_task_in_gcs", "5000")
    for what in ("destroyed_actor", "dead_worker"):
        os.environ.setdefault(f"RAY_maximum_gcs_{what}_cached_count", "1000")
    os.environ.setdefault("RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S", "2")  # three times this, and HAProxy is started anew
    names = ("HAPROXY_METRICS", "HAPROXY_STATS", "FALLBACK_PROXY_HTTP", "FALLBACK_PROXY_GRPC")
    for name, port in zip(names, free_ports(len(names)), strict=True):  # or the next service could not have them
        os.environ.setdefault(f"RAY_SERVE_{name}_PORT", str(port))
    # Serve 2.60 opens an ingress replica's gRPC port so that others may open it too (its option is a string where gRPC
    # wants a number): two services on one machine would both have 40000, and each get some of the other's requests. And
    # when an ingress dies, HAProxy knows its ports for a while: nobody else must be the next one to take them.
    for name in ("HTTP", "GRPC"):
        if f"RAY_SERVE_DIRECT_INGRESS_MIN_{name}_PORT" not in os.environ:
            first, last = free_block()
            os.environ[f"RAY_SERVE_DIRECT_INGRESS_MIN_{name}_PORT"] = str(first)
            os.environ[f"RAY_SERVE_DIRECT_INGRESS_MAX_{name}_PORT"] = str(last)
    bin_dir = str(Path(sys.executable).parent)  # ninja, which compiles DeepSpeed's CPU collectives
    if bin_dir not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([bin_dir, os.environ.get("PATH", "")])


def local_resources(config: Config) -> tuple[int, dict[str, float]]:
    """Logical CPUs and custom resources with which every tier can reach its largest replica count here."""
    cpus = config.server.num_cpus * config.server.num_replicas
    custom: dict[str, float] = {}
    for tier in config.tiers:
        if tier.inline:
            continue  # it has the actors of another
        actors = tier.replicas.max * tier.num_ranks
        cpus += tier.resources.num_cpus * actors
        for name, amount in tier.resources.custom.items():
            custom[name] = custom.get(name, 0.0) + amount * actors
    return max(os.cpu_count() or 1, math.ceil(cpus) + 1), custom


def root_cause(message: str) -> str:
    """The last exception named in a traceback or status text, as one line."""
    named = re.findall(r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception|Lost)): (.+)$", message, re.MULTILINE)
    return f"{named[-1][0]}: {named[-1][1]}" if named else " ".join(message.split())[-300:]


@contextlib.contextmanager
def running(config: Config, *, verbose: bool = False) -> Iterator[None]:
    """The application, started on a Ray of its own and ready; afterwards nothing of it is left.

    Raises `CommandError` when a port is taken or the application does not start.
    """
    make_guard(config.auth)  # a mistake in the tokens is told before anything starts
    with platform(config.server, *local_resources(config), verbose=verbose):
        deploy(config)
        yield


@contextlib.contextmanager
def environment(server: ServerConfig, folder: Path) -> Iterator[None]:
    """What Serve's processes read, for one service; the former values afterwards.

    Its HAProxy is started through `cluster.edge.haproxy`, and keeps its files in `folder`, which is this user's alone.
    """
    starter = folder / "haproxy"
    program = [sys.executable, "-I", str(Path(edge.__file__).absolute())]
    starter.write_text(f'#!/bin/sh\nexec {shlex.join(program)} "$@"\n', encoding="utf-8")
    starter.chmod(0o700)
    ours = {
        edge.BINARY: str(starter), ports.CALLBACK: ports.NARROW,
        "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE": str(server.max_message_bytes),
        **({} if server.tls is None else server.tls.environment()),
    }
    if len(str(folder)) <= LONGEST_FOLDER:  # else they stay where Serve puts them: the admin socket is private anyway
        ours |= {
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
            "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        }
    names = {*ours, edge.CERT, edge.KEY, edge.CLIENT_CA, edge.HTTPS_PORT}
    former = {name: os.environ.pop(name, None) for name in names}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in former.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def platform(
    server: ServerConfig, num_cpus: int, custom: dict[str, float], *, verbose: bool = False,
    store_bytes: int | None = None,
) -> Iterator[None]:
    """A Ray of its own with Serve's proxies and no application yet; afterwards nothing of it is left.

    `store_bytes`: of the object store; None: Ray's choice. More nodes may join: the proxies stay on this one.
    Interrupts (Ctrl-C, SIGTERM) surface as `KeyboardInterrupt` inside; during the shutdown they are ignored.
    Raises `CommandError` when a port is taken or this process runs Ray, `ConfigError` for an unusable certificate.
    """
    if server.tls is not None:
        server.tls.check_files()
    require_free(server.grpc_port, "server.grpc_port")
    require_free(server.http_port, "server.http_port")
    _require_no_ray()
    prepare_environment()
    # Short and outside any project: Ray puts sockets there, whose paths have a limit of about 100 characters.
    with (
        tempfile.TemporaryDirectory(prefix="outrider-", ignore_cleanup_errors=True) as temp_dir,
        environment(server, Path(temp_dir)),
        processes.interruptible(),
    ):
        try:
            _start(server, num_cpus, custom, temp_dir, verbose, store_bytes)
            yield
        finally:
            processes.ignore_interrupts()
            _stop(temp_dir, verbose)


def _require_no_ray() -> None:
    """Starting another one would fail, and what ends after a failed start is whatever Ray this process runs."""
    ray = sys.modules.get("ray")  # not imported here: it reads the environment, which is not prepared yet
    if ray is not None and ray.is_initialized():
        raise CommandError("this process runs Ray already: call ray.shutdown() first")


def _start(
    server: ServerConfig, num_cpus: int, custom: dict[str, float], temp_dir: str, verbose: bool, store_bytes: int | None
) -> None:
    """Ray and Serve's proxies. Raises `CommandError` when one of them does not start."""
    import ray
    from ray import serve
    from ray.exceptions import RayError

    level = logging.INFO if verbose else logging.ERROR
    init = partial(
        ray.init, address="local", num_cpus=num_cpus, resources=custom or None, include_dashboard=False,
        log_to_driver=verbose, logging_level=level, _temp_dir=temp_dir, _node_ip_address=LOOPBACK,
        object_store_memory=store_bytes,
    )  # fmt: skip
    head.start(init, ray.shutdown, temp_dir)
    processes.catch_interrupts()  # ray.init replaced a handler
    if not verbose:
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": server.host, "port": server.http_port},
            grpc_options={"port": server.grpc_port, "grpc_servicer_functions": [SERVICER]},
        )
    except (RayError, TimeoutError) as error:
        raise CommandError(f"Serve's proxy did not start: {_proxy_reason(str(error))}") from error


def _proxy_reason(message: str) -> str:
    """Of HAProxy's pages of output, what a user can act upon."""
    taken = re.search(r"cannot\s+bind\s+socket\s+\(Address\s+already\s+in\s+use\)\s+for\s+\[([^]]+)\]", message)
    return f"another process took {taken[1]} meanwhile; try again" if taken else root_cause(message)


def deploy(config: Config, name: str = APPLICATION, route: str = "/") -> None:
    """The application on a platform that runs; returns when it is healthy. Raises `CommandError` if it does not start.

    Of several, each needs its own HTTP route, and requests name theirs in the metadata `application`.
    """
    from ray import serve

    from cluster.app import build

    try:
        serve.run(build(config.model_dump(mode="json")), name=name, route_prefix=route)
    except RuntimeError as error:
        raise CommandError(f"the application did not start: {_why(str(error))}") from error


def _why(fallback: str) -> str:
    """What the first unhealthy deployment says of itself."""
    from ray import serve

    for application in serve.status().applications.values():
        for name, deployment in application.deployments.items():
            if deployment.message and deployment.status != "HEALTHY":
                return f"{name}: {root_cause(deployment.message)}"
    return root_cause(fallback)


def _stop_serve() -> None:
    """Let running requests end, but not for long: replicas would wait as long as a request may live."""
    from ray import serve

    async def stop() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(serve.shutdown_async(), GRACE_S)  # type: ignore[no-untyped-call]

    asyncio.run(stop())


def _stop(temp_dir: str, verbose: bool) -> None:
    """Serve, then Ray, each within a bound; then whatever of ours still runs."""
    import ray

    ours = processes.descendants()
    # Serve kills its controller in the middle of a call, which Ray reports as an error of ours.
    quiet = contextlib.nullcontext() if verbose else contextlib.redirect_stderr(io.StringIO())
    if ray.is_initialized():
        with quiet:
            # A Serve that hangs may still use Ray from its thread, which must not be shut down under it.
            if processes.bounded(_stop_serve, SHUTDOWN_TIMEOUT_S):
                processes.bounded(ray.shutdown, SHUTDOWN_TIMEOUT_S)
    processes.end([*ours, *processes.mentioning(temp_dir)])

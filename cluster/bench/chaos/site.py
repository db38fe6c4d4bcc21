"""A running service as the bench sees it: its pools' replicas, its processes, its nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
import ray
from ray import serve
from ray._private.internal_api import node_stats
from ray.exceptions import RayError
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ServeDeploySchema

from cluster.bench.chaos.faults import Fault, Need
from cluster.bench.chaos.nodes import Node
from cluster.bench.chaos.relayed import View
from cluster.cli import local, processes
from cluster.config import Config
from cluster.routing import Preference

CALL_S = 8.0
START_S = 240.0
WHOLE_S = 120.0  # after a fault all replicas are back within this time
IDLE_S = 30.0  # after the last stream every page is free within this time
NODE_CPUS = 1  # fewer than an ingress replica asks for
STORE_BYTES = 150 * 2**20
SERVED = "ray::ServeReplica:outrider:"
DRAFT, TARGET = "draft", "target"


class NotWhole(RuntimeError):
    """The service did not become whole again in time; one line."""


@dataclass
class Site:
    """The service, from `running` until that ends."""

    config: Config
    address: str
    pools: dict[str, str]  # deployment by role
    node: Node | None = None
    overrides: dict[str, dict[str, object]] = field(default_factory=dict)  # of deployments, by name
    _handles: dict[str, Any] = field(default_factory=dict)

    # --- replicas

    def views(self, role: str) -> list[View]:
        """The replicas that answer."""
        return self._each(role, "view")

    def ready(self, role: str) -> list[View]:
        """The replicas that take sequences."""
        return [view for view in self.views(role) if view.ready]

    def tell(self, role: str, method: str, *arguments: object, only: str | None = None) -> None:
        """Call a method of every replica, or of the one with the tag `only`."""
        self._each(role, method, *arguments, only=only)

    def _each(self, role: str, method: str, *arguments: object, only: str | None = None) -> list[Any]:
        """Ask until a replica answers that has answered before: a handle cannot name one, a preference can avoid."""
        count = self.wanted(role)
        others = frozenset() if only is None else frozenset(v.tag for v in self.views(role) if v.tag != only)
        answers: dict[str, Any] = {}
        for _ in range(3 * count):
            preference = Preference(avoid=others | frozenset(answers))
            try:
                answer = getattr(self._handle(role), method).remote(*arguments, preference).result(
                    timeout_s=CALL_S
                )
            except (RayError, RayServeException, TimeoutError):  # it has just died, or stands still
                time.sleep(0.05)
                continue
            tag = answer if isinstance(answer, str) else answer.tag
            if tag in answers:
                break
            answers[tag] = answer
            if len(answers) == (1 if only is not None else count):
                break
        return list(answers.values())

    def redeploy(self, role: str, **options: object) -> None:
        """Change options of a pool's deployment as a changed config file does; returns at once."""
        self.overrides.setdefault(self.pools[role], {}).update(options)
        deploy(self.config, self.overrides)

    def wanted(self, role: str) -> int:
        """Replicas that a pool should have."""
        return self.config.tiers[-1 if role == TARGET else 0].replicas.max

    def _handle(self, role: str) -> Any:
        if role not in self._handles:
            self._handles[role] = serve.get_deployment_handle(self.pools[role], local.APPLICATION)
        return self._handles[role]

    # --- waiting

    def wait_whole(self, within_s: float = WHOLE_S) -> None:
        """Until every replica of every deployment is there. Raises `NotWhole`."""
        end_s, missing = time.monotonic() + within_s, "?"
        while time.monotonic() < end_s:
            missing = self._missing()
            if not missing:
                return
            time.sleep(0.2)
        raise NotWhole(f"after {within_s:g} s: {missing}")

    def _missing(self) -> str:
        """What is not there; empty: nothing."""
        try:
            application = serve.status().applications.get(local.APPLICATION)
        except (RayError, RayServeException, TimeoutError) as error:
            return f"Serve's controller ({type(error).__name__})"
        if application is None or application.status != "RUNNING":
            return f"the application is {application.status if application else 'unknown'}"
        for role in self.pools:
            if (ready := len(self.ready(role))) < self.wanted(role):
                return f"{role}: {ready} of {self.wanted(role)} replicas are ready"
        return ""

    def wait_idle(self, within_s: float = IDLE_S) -> list[str]:
        """Until no replica holds anything of any sequence; else what is still held, one line each."""
        end_s = time.monotonic() + within_s
        while True:
            held = [
                f"{role} {view.tag}: {view.num_leases} leases, {view.stats}"
                for role in self.pools for view in self.ready(role) if not view.idle
            ]
            if not held or time.monotonic() > end_s:
                return held
            time.sleep(0.1)

    def wait_none_stopped(self, within_s: float = IDLE_S) -> list[str]:
        """Until no process of the service stands still; else which do, one line each."""
        end_s = time.monotonic() + within_s
        while True:
            found = [f"process {each.pid} was never ended" for each in processes.descendants() if _is_stopped(each)]
            if not found or time.monotonic() > end_s:
                return found
            time.sleep(0.2)

    def able(self, fault: Fault) -> str:
        """Why a fault makes no sense here; empty: it does."""
        for need in sorted(fault.needs):
            if not self._has(need):
                return f"needs {need}"
        return ""

    def _has(self, need: Need) -> bool:
        match need:
            case Need.DRAFTS:
                return DRAFT in self.pools
            case Need.COPIES:
                return all(self.wanted(role) > 1 for role in self.pools)
            case Need.RANKS:
                return self.config.target.num_ranks > 1
            case Need.NODE:
                return self.node is not None
            case Need.COORDINATORS:
                return self.config.server.num_replicas > 1

    # --- processes

    def processes(self, matches: Callable[[str], bool]) -> list[psutil.Process]:
        """Those below this one whose title (or name) matches, oldest first."""
        found = []
        for process in processes.descendants():
            with contextlib.suppress(psutil.Error):  # it has ended
                words = process.cmdline() or [process.name()]
                if matches(words[0]):
                    found.append((process.create_time(), process.pid, process))
        return [process for _, _, process in sorted(found, key=lambda each: each[:2])]

    def replicas_of(self, deployment: str) -> list[psutil.Process]:
        """Processes of a deployment's replicas."""
        return self.processes(lambda title: title.split(".")[0] == f"{SERVED}{deployment}")


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False  # it has ended


def object_store_mib() -> float:
    """What the object stores of all nodes hold, MiB."""
    return sum(
        node_stats(  # type: ignore[no-untyped-call]  # Ray's own
            node["NodeManagerAddress"], node["NodeManagerPort"], False
        ).store_stats.object_store_bytes_used
        for node in ray.nodes() if node["Alive"]  # type: ignore[no-untyped-call]  # likewise
    ) / 2**20


@contextlib.contextmanager
def running(config: Config, *, two_nodes: bool, verbose: bool = False) -> Iterator[Site]:
    """The service on a Ray of its own, whole; afterwards nothing of it is left. Raises `CommandError`."""
    cpus, custom = local.local_resources(config)
    share = {name: amount / 2 for name, amount in custom.items()} if two_nodes else custom
    with local.platform(config.server, cpus, share, verbose=verbose, store_bytes=STORE_BYTES):
        node = Node(NODE_CPUS, share, STORE_BYTES) if two_nodes else None
        try:
            if node is not None:
                node.start()
            deploy(config)
            roles = [f"tier{i}-{tier.name}" for i, tier in enumerate(config.tiers) if not tier.inline]
            pools = {TARGET: roles[-1]} if len(roles) == 1 else {DRAFT: roles[0], TARGET: roles[-1]}
            site = Site(config, f"{local.LOOPBACK}:{config.server.grpc_port}", pools, node)
            site.wait_whole(START_S)
            yield site
        finally:
            if node is not None:
                node.end()


def deploy(config: Config, overrides: Mapping[str, Mapping[str, object]] | None = None) -> None:
    """Deploy as a config file does: what changes nothing but numbers leaves the replicas that there are alone.

    `overrides`: more settings of a deployment, by name.
    """
    client = _get_global_client()
    assert client is not None  # Serve was started by `local.platform`
    schema = ServeDeploySchema.model_validate({"applications": [{
        "name": local.APPLICATION, "route_prefix": "/", "import_path": "cluster.bench.chaos.relayed:build",
        "args": config.model_dump(mode="json"),
        "deployments": [{"name": name, **options} for name, options in (overrides or {}).items()],
    }]})
    client.deploy_apps(schema)

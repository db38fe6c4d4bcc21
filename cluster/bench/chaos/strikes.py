"""How each fault is brought about. Every function strikes at once; what it returns can undo it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import numpy as np
import psutil
import ray

from cluster.bench.chaos.judge import LEFT, OK, Stream
from cluster.bench.chaos.load import PATIENCE_S, Ask, Clients, note, read, stub_of
from cluster.bench.chaos.relay import Ill, Trouble
from cluster.bench.chaos.relayed import View
from cluster.bench.chaos.schedule import Blow
from cluster.bench.chaos.site import DRAFT, STORE_BYTES, TARGET, Site

SPOKEN_S = 30.0  # until a client's process has its first tokens
CANCEL_AFTER = 8  # chunks
NUM_CLIENTS = 3
EMPTY_S = 30.0  # a drained replica holds nothing after this time


class NoVictim(RuntimeError):
    """There was nothing to strike, or nothing came of it: the run proves nothing. One line."""


@dataclass
class Struck:
    """A fault under way."""

    at_s: float = field(default_factory=time.monotonic)
    undo: Callable[[], None] = lambda: None  # after `Blow.lasts_s`; may raise `NoVictim`
    streams: list[Stream] = field(default_factory=list)  # more of them, to be judged with those of the load
    reading: list[Future[None]] = field(default_factory=list)  # what reads these

    def join(self) -> None:
        """Wait until the further streams have ended."""
        for each in self.reading:
            each.result()


@dataclass(frozen=True)
class Arms:
    """What the strikes have at hand."""

    site: Site
    clients: Clients
    asks: tuple[Ask, ...]
    long_asks: tuple[Ask, ...]


def kill(pid: int) -> Struck:
    """SIGKILL."""
    struck = Struck()
    os.kill(pid, signal.SIGKILL)
    return struck


def victim(arms: Arms, blow: Blow, role: str) -> View:
    """A replica that is ready and in use, if there is one. Raises `NoVictim`."""
    views = arms.site.ready(role)
    if len(views) < arms.site.wanted(role):
        raise NoVictim(f"only {len(views)} replicas of the {role} pool are ready")
    used = [view for view in views if view.num_leases] or views
    return sorted(used, key=lambda view: view.tag)[blow.pick(len(used))]


def _one(blow: Blow, found: list[psutil.Process], what: str) -> int:
    if not found:
        raise NoVictim(f"there is no process of {what}")
    return int(found[blow.pick(len(found))].pid)


# --- processes that end


def kill_actor(role: str, follower: bool = False) -> Strike:
    """Of a pool: rank 0 of a replica, or one of the others."""
    def strike(arms: Arms, blow: Blow) -> Struck:
        pids = victim(arms, blow, role).actor_pids
        return kill(pids[-1 if follower else 0])
    return strike


def kill_replica(role: str) -> Strike:
    """Of a pool: the process that hands out leases."""
    def strike(arms: Arms, blow: Blow) -> Struck:
        return kill(victim(arms, blow, role).pid)
    return strike


def kill_served(deployment: str) -> Strike:
    """A replica of a deployment."""
    def strike(arms: Arms, blow: Blow) -> Struck:
        return kill(_one(blow, arms.site.replicas_of(deployment), deployment))
    return strike


def kill_titled(title: str) -> Strike:
    """A process by its title's beginning, or its program's name."""
    def strike(arms: Arms, blow: Blow) -> Struck:
        found = arms.site.processes(lambda seen: seen.startswith(title) or os.path.basename(seen) == title)
        return kill(_one(blow, found, title))
    return strike


def kill_node(arms: Arms, blow: Blow) -> Struck:
    """The second node; a new one joins as soon as it is gone, as a cluster's autoscaler would have it."""
    node = arms.site.node
    assert node is not None  # `Site.able`
    struck = Struck()
    node.kill()
    try:
        node.start()
    except TimeoutError as error:  # then the service cannot become whole either, which is told
        raise NoVictim(str(error)) from error
    return struck


# --- processes that stand still


def stall(role: str, follower: bool = False, for_good: bool = False) -> Strike:
    """SIGSTOP; unless `for_good`, SIGCONT when it is undone."""
    def strike(arms: Arms, blow: Blow) -> Struck:
        pid = victim(arms, blow, role).actor_pids[-1 if follower else 0]

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):  # it was given up and killed meanwhile
                os.kill(pid, signal.SIGCONT)

        struck = Struck(undo=(lambda: None) if for_good else go_on)
        os.kill(pid, signal.SIGSTOP)
        return struck
    return strike


# --- connections


def trouble(ill: Ill, roles: tuple[str, ...], share: float = 1.0, one: bool = False) -> Strike:
    """On the way to all replicas of one of the pools, or to one replica of it."""
    def strike(arms: Arms, blow: Blow) -> Struck:
        role = roles[blow.seed % len(roles)]
        before = sum(view.num_hit for view in arms.site.views(role))
        only = victim(arms, blow, role).tag if one else None

        def calm() -> None:
            arms.site.tell(role, "disturb", None)
            hit = sum(view.num_hit for view in arms.site.views(role)) - before
            if not hit:
                raise NoVictim("no message was concerned")

        struck = Struck(undo=calm)
        arms.site.tell(role, "disturb", Trouble(ill, share, seed=blow.seed), only=only)
        return struck
    return strike


# --- memory


def fill_object_store(arms: Arms, blow: Blow) -> Struck:
    """Objects that are in use, twice as large as the store: Ray has to write some to disk."""
    piece = 2**23
    struck = Struck()
    held = [ray.put(np.full(piece, i % 251, np.uint8)) for i in range(2 * STORE_BYTES // piece)]
    struck.undo = held.clear
    return struck


def fill_kv(arms: Arms, blow: Blow) -> Struck:
    """Long prompts all at once."""
    return _further(arms, [(ask, None) for ask in arms.long_asks])


# --- clients


def cancel(arms: Arms, blow: Blow) -> Struck:
    """Streams that end in the middle."""
    chance = blow.chance()
    return _further(arms, [(ask, chance.randrange(1, CANCEL_AFTER)) for ask in arms.asks[:NUM_CLIENTS]])


def stop_reading(arms: Arms, blow: Blow) -> Struck:
    """Streams whose reader pauses for `lasts_s` after its first chunk."""
    return _further(arms, [(ask, None) for ask in arms.asks[:NUM_CLIENTS]], pause_s=blow.lasts_s)


def disconnect(arms: Arms, blow: Blow) -> Struck:
    """A client's process with streams under way is killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster.bench.chaos.leaver", arms.site.address], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    watchdog = threading.Timer(SPOKEN_S, process.kill)
    watchdog.start()
    said = process.stdout.readline()
    watchdog.cancel()
    struck = Struck()
    process.kill()
    process.wait()
    process.stdout.close()
    if said.strip() != b"spoken":
        raise NoVictim("the client's process had no stream under way")
    return struck


def _further(
    arms: Arms, wanted: list[tuple[Ask, int | None]], pause_s: float = 0.0
) -> Struck:
    """More streams; `wanted` with the number of chunks after which the client leaves, if it does."""
    struck = Struck()

    async def one(ask: Ask, leave_after: int | None) -> None:
        async with stub_of(arms.site.address) as stub:
            stream = Stream(ask.name, time.monotonic())
            struck.streams.append(stream)
            if leave_after is None and not pause_s:
                await read(stub, ask, [], stream)
            else:
                await _unsteady(stub, ask, stream, leave_after, pause_s)

    async def run() -> None:
        await asyncio.gather(*(one(*each) for each in wanted))

    struck.reading.append(arms.clients.run(run()))
    return struck


async def _unsteady(stub: Any, ask: Ask, stream: Stream, leave_after: int | None, pause_s: float) -> None:
    """A reader that leaves after so many chunks, or pauses after the first."""
    call = stub.GenerateStream(ask.message(), timeout=PATIENCE_S)
    count = 0
    try:
        async for chunk in call:
            note(stream, chunk, [])
            count += 1
            if count == leave_after and stream.status != OK:
                stream.status = LEFT
                return
            if count == 1:
                await asyncio.sleep(pause_s)
    except grpc.aio.AioRpcError as error:
        stream.status, stream.detail = error.code().name, " ".join((error.details() or "").split())
    finally:
        call.cancel()
        stream.ended_s = time.monotonic()


# --- operations


def drain(role: str) -> Strike:
    """A replica gives no more leases, and those it gave are revoked; once it is empty, its process is ended."""
    def strike(arms: Arms, blow: Blow) -> Struck:
        chosen = victim(arms, blow, role)

        def replace() -> None:
            end_s = time.monotonic() + EMPTY_S
            while any(view.tag == chosen.tag and view.num_leases for view in arms.site.views(role)):
                if time.monotonic() > end_s:
                    raise NoVictim(f"the drained replica still held sequences after {EMPTY_S:g} s")
                time.sleep(0.1)
            with contextlib.suppress(ProcessLookupError):
                os.kill(chosen.pid, signal.SIGKILL)

        struck = Struck(undo=replace)
        arms.site.tell(role, "drain_self", only=chosen.tag)
        return struck
    return strike


def scale(role: str) -> Strike:
    """One replica less, and back to what it was."""
    def strike(arms: Arms, blow: Blow) -> Struck:
        count = arms.site.wanted(role)
        struck = Struck(undo=lambda: arms.site.redeploy(role, num_replicas=count))
        arms.site.redeploy(role, num_replicas=count - 1)
        return struck
    return strike


def update_draft(arms: Arms, blow: Blow) -> Struck:
    """Other weights of the draft than now, without ending a replica."""
    name = arms.site.pools[DRAFT]
    now = arms.site.overrides.get(name, {}).get("user_config")
    struck = Struck()
    arms.site.redeploy(DRAFT, user_config={"weights": "bf16" if now == {"weights": "int8"} else "int8"})
    return struck


Strike = Callable[[Arms, Blow], Struck]

BOTH = (DRAFT, TARGET)
STRIKES: dict[str, Strike] = {
    "kill_draft_actor": kill_actor(DRAFT),
    "kill_draft_replica": kill_replica(DRAFT),
    "kill_target_leader": kill_actor(TARGET),
    "kill_target_rank": kill_actor(TARGET, follower=True),
    "kill_target_replica": kill_replica(TARGET),
    "kill_node": kill_node,
    "kill_ingress": kill_served("ingress"),
    "kill_directory": kill_served("prefixes"),
    "kill_controller": kill_titled("ray::ServeController"),
    "kill_proxy": kill_titled("haproxy"),
    "kill_proxy_manager": kill_titled("ray::HAProxyManager"),
    "stall_draft": stall(DRAFT),
    "stall_target": stall(TARGET),
    "hang_target": stall(TARGET, for_good=True),
    "hang_rank": stall(TARGET, follower=True, for_good=True),
    "lose": trouble(Ill.LOSE, (DRAFT,), share=0.3),
    "delay": trouble(Ill.DELAY, BOTH),
    "reorder": trouble(Ill.REORDER, BOTH),
    "duplicate": trouble(Ill.DUPLICATE, BOTH),
    "truncate": trouble(Ill.TRUNCATE, BOTH, share=0.1),
    "corrupt_draft": trouble(Ill.CORRUPT, (DRAFT,), share=0.5),
    "corrupt_frame": trouble(Ill.GARBAGE, BOTH, share=0.05),
    "silence": trouble(Ill.SILENCE, (TARGET,), one=True),
    "fill_object_store": fill_object_store,
    "fill_kv": fill_kv,
    "cancel": cancel,
    "stop_reading": stop_reading,
    "disconnect": disconnect,
    "drain_draft": drain(DRAFT),
    "drain_target": drain(TARGET),
    "scale_draft": scale(DRAFT),
    "scale_target": scale(TARGET),
    "update_draft": update_draft,
}
RELAYED = frozenset({
    "lose", "delay", "reorder", "duplicate", "truncate", "corrupt_draft", "corrupt_frame", "silence",
})

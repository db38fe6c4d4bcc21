"""One tier as a Serve deployment: replicas that own accelerator actors and hand out leases.

A lease is a streaming call that stays open while the sequence lives, so Serve sees it as the replica's
ongoing work: routing, autoscaling and graceful shutdown (which waits for it) need no bookkeeping of ours.
Proposals and verify passes go straight to the actor at the grant's endpoint and never through Serve.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.exceptions import RayError, RayTaskError

from actors import logs
from actors.messages import ReplicaInfo, ReplicaStats
from actors.spans import Spans
from actors.wire.access import Endpoint
from cluster.groups import PoolSettings, make_group, updated
from cluster.routing import Preference
from cluster.scaling.reports import of_replica
from cluster.telemetry.metrics import Report
from cluster.telemetry.publisher import Publisher
from cluster.telemetry.replica import replica_samples

logger = logging.getLogger(__name__)

ANSWER_S = 10.0  # an actor that needs longer for a ping hangs
ATTEND_S = 5.0  # likewise, while a sequence waits for its lease
TAKEN_S = 10.0  # Serve goes on with a stream as soon as it has sent an item: whoever does not by then has gone
EMPTY_S = 30.0  # sequences have left a replica that is updated within this time; each round ends sooner
MIN_REBUILD_S = 120.0  # a rebuild may take this long, or three times what the first start took


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """First item of a lease: where to send the calls. A rebuilt group has a new `replica_id`."""

    replica_id: str
    endpoint: Endpoint
    info: ReplicaInfo


@dataclass(frozen=True, slots=True)
class Refused:
    """First and only item of a lease that the replica cannot give now."""

    reason: str
    tag: str  # of the replica, as its router knows it
    full: bool = False  # it holds as many sequences as it can; otherwise it is not (or no longer) able to serve


@dataclass(frozen=True, slots=True)
class Revoked:
    """Later item: the replica's actors are going away; lease elsewhere."""

    reason: str


@dataclass(frozen=True, slots=True)
class PoolReport:
    """One replica of a pool."""

    replica: str
    num_leases: int
    max_leases: int
    stats: ReplicaStats


class Pool:
    """A replica of one tier (wrapped as a Serve deployment in `cluster.app`)."""

    async def __init__(self, settings: PoolSettings) -> None:  # type: ignore[misc]  # Serve awaits it
        self._settings = self._deployed = settings
        self._tag = serve.get_replica_context().replica_tag
        process = {"outrider.component": "pool", "service.instance.id": self._tag}
        logs.configure(settings.watch, component="pool", replica=self._tag)
        self._spans = Spans.open(settings.watch, process, {"outrider.tier": settings.name})
        self._publisher = Publisher(
            settings.watch, process, self._report, interval_s=settings.metrics_interval_s,
            through_ray=settings.ray_metrics,
        )
        self._leases: dict[str, tuple[int, asyncio.Event]] = {}  # lease -> generation; set when that is gone
        self._closing: set[asyncio.Task[str | None]] = set()
        self._draining = asyncio.Event()
        self._updating = False
        self._mute: int | None = None  # generation of actors of which one did not answer when it was last asked
        self._group = make_group(settings, self._revoke)
        began = time.monotonic()
        await self._group.start()
        self._rebuild_s = max(MIN_REBUILD_S, 3 * (time.monotonic() - began))
        self._last_alive = time.monotonic()
        self._info: ReplicaInfo = await self._group.leader.info.remote()
        self._publisher.start()

    def _revoke(self, generation: int) -> None:
        """The actors of `generation` are gone, and with them every sequence they held."""
        for granted, gone in self._leases.values():
            if granted <= generation:
                gone.set()

    async def drain(self, replica_tag: str) -> bool:
        """Empty this replica if it is `replica_tag`: no new leases, and those it gave are revoked.

        Sequences finish their round here and go on elsewhere; nothing in a stream changes. False on any
        other replica: a handle cannot name one, so ask until it is met.
        """
        if replica_tag != self._tag:
            return False
        self._draining.set()
        return True

    async def reconfigure(self, user_config: dict[str, object]) -> None:
        """Another draft in place of this one; Serve asks one replica after the other when `user_config` changes.

        `model` and `weights` as in the tier's settings; what is missing is as deployed. Sequences finish their round
        here and go on elsewhere. Raises ValueError when the draft cannot be had; then the former one goes on.
        """
        settings = updated(self._deployed, user_config)
        if settings == self._settings:
            return
        self._updating = True
        try:
            await self._empty()
            former, info = self._settings, self._info
            try:
                await self._replace_group(settings)
                if self._info.tokenizer_fingerprint != info.tokenizer_fingerprint:
                    raise ValueError(f"{settings.spec.model} has another tokenizer than the draft that it replaces")
            except (RayError, ValueError) as error:
                await self._replace_group(former)
                reason = error.cause if isinstance(error, RayTaskError) else error
                raise ValueError(f"user_config: the draft stays as it was: {reason}") from error
            logger.warning("draft updated", extra={"pool": settings.name, "model": settings.spec.model})
        finally:
            self._updating = False

    async def _empty(self) -> None:
        """Revoke every lease, and wait until the sequences have gone."""
        draining, self._draining = self._draining, asyncio.Event()
        if draining.is_set():  # it was to be empty before, and stays so
            self._draining.set()
        draining.set()
        end = time.monotonic() + EMPTY_S
        while self._leases and time.monotonic() < end:
            await asyncio.sleep(0.05)

    async def _replace_group(self, settings: PoolSettings) -> None:
        """Other actors in the place of those that there are."""
        generation = self._group.generation
        await self._group.shutdown()
        self._revoke(generation)
        self._settings, self._group = settings, make_group(settings, self._revoke)
        self._group.generation = generation
        await self._group.start()
        self._last_alive = time.monotonic()
        self._info = await self._group.leader.info.remote()

    async def replica_tag(self) -> str:
        """Name of the replica that happened to answer."""
        return self._tag

    def _refusal(self) -> Refused | None:
        limit = self._settings.spec.max_sequences
        if self._draining.is_set():
            return Refused(f"{self._settings.name}: {self._tag} is draining", self._tag)
        if self._updating:
            return Refused(f"{self._settings.name}: {self._tag} is being updated", self._tag)
        if not self._group.alive():
            return Refused(f"{self._settings.name}: its actors are being rebuilt", self._tag)
        if self._mute == self._group.generation:
            return Refused(f"{self._settings.name}: an actor of {self._tag} does not answer", self._tag)
        if len(self._leases) >= limit:
            return Refused(
                f"{self._settings.name}: all {limit} sequences of {self._tag} are taken; "
                "raise max_sequences or replicas.max", self._tag, full=True,
            )
        return None

    async def _reached_at(self) -> Endpoint:
        """Where a lease's calls go."""
        return self._group.endpoint

    async def lease(
        self, sequence_id: str, preference: Preference | None = None, trace: bytes = b""
    ) -> AsyncGenerator[LeaseGrant | Refused | Revoked, None]:
        """Hold this replica for one sequence until it is closed at the actor or the consumer cancels.

        `preference` is for the router (`cluster.routing`), which has read it when the call comes here. `trace`: the
        span that the call is part of (`actors.spans.pack`), if its request is traced.
        """
        began_ns = time.time_ns()
        refusal = self._refusal()
        if refusal is not None:
            self._draw(trace, sequence_id, began_ns, "refused")
            yield refusal
            return
        leader, endpoint = self._group.leader, await self._reached_at()
        generation, gone = self._group.generation, asyncio.Event()
        key = f"{sequence_id}/{time.monotonic_ns()}"  # a sequence may come back before its former lease has ended
        self._leases[key] = (generation, gone)
        lost = asyncio.create_task(gone.wait())
        draining = asyncio.create_task(self._draining.wait())
        ended = False
        try:
            # A grant is a promise that the actor lives and will tell of the sequence's end, however early that comes:
            # calls with arguments may begin later than calls made after them, so the wait itself proves nothing.
            if not await _answers(leader.attend.remote(sequence_id, key), ATTEND_S):
                self._mute = generation  # whoever asks next need not wait; `check_health` looks again
                self._draw(trace, sequence_id, began_ns, "no answer")
                yield Refused(f"{self._settings.name}: an actor of {self._tag} does not answer", self._tag)
                return
            closed = asyncio.create_task(_settle(leader.wait_closed.remote(sequence_id, key)))
            self._draw(trace, sequence_id, began_ns)
            # A call that is cancelled just while Serve sends an item leaves its generator at the `yield`, with no word.
            timer = asyncio.get_running_loop().call_later(TAKEN_S, self._abandon, key, leader, sequence_id)
            try:
                yield LeaseGrant(f"{self._tag}#{generation}", endpoint, self._info)
            finally:
                timer.cancel()
            await asyncio.wait({closed, lost, draining}, return_when=asyncio.FIRST_COMPLETED)
            if draining.done() and not (closed.done() or lost.done()):
                yield Revoked(f"{self._settings.name}: {self._tag} is draining")
                # Held until the sequence is closed: the round under way may still end here.
                await asyncio.wait({closed, lost}, return_when=asyncio.FIRST_COMPLETED)
            ended = closed.done() and closed.result() is None
            if not ended:
                yield Revoked(f"{self._settings.name}: the actors of {self._tag} were lost")
        finally:
            lost.cancel()
            draining.cancel()
            if ended:
                self._leases.pop(key, None)
            else:
                self._abandon(key, leader, sequence_id)

    def _abandon(self, key: str, leader: Any, sequence_id: str) -> None:
        """The consumer of a lease went away: nobody else will free the sequence."""
        if self._leases.pop(key, None) is not None:
            task = asyncio.create_task(_settle(leader.close.remote(sequence_id, key)))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _draw(self, trace: bytes, sequence_id: str, began_ns: int, error: str | None = None) -> None:
        """How long it took until the lease was granted or refused."""
        if trace and self._spans is not None:
            attributes = {"outrider.request_id": sequence_id, "outrider.replica": self._tag}
            self._spans.record("grant", trace, began_ns, time.time_ns(), attributes, error)

    async def metrics(self, preference: Preference | None = None) -> tuple[str, Report]:
        """(tag, metrics) of this replica. `preference` is for the router, as in `lease`."""
        return self._tag, await self._report()

    async def _report(self) -> Report:
        settings = self._settings
        source = (("model_name", settings.model_name), ("tier", settings.name), ("replica", self._tag))
        samples = replica_samples(await self.stats(), len(self._leases), settings.spec.max_sequences)
        return Report(source, samples)

    async def info(self) -> ReplicaInfo:
        """What this replica serves."""
        return self._info

    async def stats(self) -> ReplicaStats:
        """Counters of the replica's engine."""
        stats: ReplicaStats = await self._group.leader.stats.remote()
        return stats

    async def report(self, preference: Preference | None = None) -> tuple[str, PoolReport]:
        """(tag, how this replica is doing). `preference` is for the router, as in `lease`."""
        stats = await self.stats()
        return self._tag, PoolReport(self._tag, len(self._leases), self._settings.spec.max_sequences, stats)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Serve passes on to this pool's autoscaling policy."""
        try:
            async with asyncio.timeout(ANSWER_S / 2):
                stats: ReplicaStats | None = await self.stats() if self._group.alive() else None
        except (RayError, TimeoutError):
            stats = None  # its end, or that it hangs, is the health check's business
        return of_replica(len(self._leases), stats)

    async def leader_pid(self) -> int:
        """Process id, on its own node, of the actor that takes the calls."""
        pid: int = await self._group.leader.pid.remote()
        return pid

    async def num_leases(self) -> int:
        """Sequences that hold this replica."""
        return len(self._leases)

    async def check_health(self) -> None:
        """Serve replaces the replica when this raises; a rebuild under way counts as healthy for a while."""
        now = time.monotonic()
        if self._group.alive():
            self._last_alive = now
            generation, answers = self._group.generation, await self._group.check(ANSWER_S)
            self._mute = None if answers else generation
            if not answers and self._group.alive():
                raise RuntimeError(f"{self._settings.name}: an actor of {self._tag} does not answer")
        elif now - self._last_alive > self._rebuild_s:
            raise RuntimeError(f"{self._settings.name}: {self._tag} cannot rebuild its actors; see its log")


async def _settle(ref: Any) -> str | None:
    """None when the call ended well, else why not."""
    try:
        await ref
    except RayError as error:
        return type(error).__name__
    return None


async def _answers(call: Awaitable[None], within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await call
    except (RayError, TimeoutError):
        return False
    return True

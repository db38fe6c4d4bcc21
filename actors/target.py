"""The ranks of one target replica, kept as a unit: started, watched, and rebuilt together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from actors.messages import ReplicaInfo
from actors.ranks import LOOPBACK, RankWorker
from actors.spec import InlineTier, ModelSpec
from actors.watch import WatchSpec
from actors.wire.access import Endpoint

log = logging.getLogger(__name__)

MAX_CONCURRENCY = 1000  # calls in flight per rank; the engine's own queues bound the work


class GroupDown(RuntimeError):
    """The group is not (or no longer) usable."""


class TargetGroup:
    """`spec.tensor_parallel_size` ranks in the caller's process tree: they die with it.

    One dead rank leaves the others waiting in a collective, so any death means killing all of them and
    starting anew, under a higher `generation`. Sequences are gone then; callers open them again from their
    committed tokens. `on_lost(generation)` is called before a rebuild, for revoking leases.
    `actor_options` are Ray actor options, one dict per rank (scheduling strategy, resources). `inline`: tiers below
    this one that run in rank 0's process, smallest first. `name`: of the tier.
    """

    def __init__(
        self, spec: ModelSpec, actor_options: Sequence[dict[str, Any]] | None = None, *, law_support: int = 64,
        inline: Sequence[InlineTier] = (), on_lost: Callable[[int], None] | None = None, max_rebuilds: int = 5,
        start_timeout_s: float = 1800.0, watch: WatchSpec = WatchSpec(), name: str = "target",  # noqa: B008  # frozen
    ) -> None:
        size = spec.tensor_parallel_size
        if size < 1:
            raise ValueError(f"tensor_parallel_size is {size}: set it to 1 or more")
        if actor_options is not None and len(actor_options) != size:
            raise ValueError(
                f"{len(actor_options)} actor_options for tensor_parallel_size {size}: give one dict per rank"
            )
        self._spec = spec
        self._options = [dict(options) for options in actor_options or [{"num_cpus": 1}] * size]
        self._law_support = law_support
        self._inline = tuple(inline)
        self._watch = watch
        self._name = name
        self._on_lost = on_lost
        self._max_rebuilds = max_rebuilds
        self._start_timeout_s = start_timeout_s
        self._ranks: list[Any] = []
        self._endpoint: Endpoint | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self.generation = 0  # of the ranks in use; grows with every (re)build

    @property
    def leader(self) -> Any:
        """Actor handle of rank 0: close, attend, wait_closed, info, stats, ping. Raises `GroupDown` before `start`.

        While a rebuild is under way its calls end with ActorDiedError.
        """
        if not self._ranks:
            raise GroupDown("the target group is not running: call start() first")
        return self._ranks[0]

    @property
    def endpoint(self) -> Endpoint:
        """Where rank 0 takes verify passes. Raises `GroupDown` before `start`."""
        if self._endpoint is None:
            raise GroupDown("the target group is not running: call start() first")
        return self._endpoint

    @property
    def ranks(self) -> tuple[Any, ...]:
        """Actor handles of all ranks, rank 0 first."""
        return tuple(self._ranks)

    async def start(self) -> ReplicaInfo:
        """Start all ranks and load the model; then watch them. Raises the reason when they cannot be started."""
        info = await self._build()
        self._supervisor = asyncio.create_task(self.supervise(), name="target-group")
        return info

    def alive(self) -> bool:
        """True while all ranks are up and ready."""
        return self._ready.is_set()

    async def wait_ready(self, timeout_s: float) -> bool:
        """True once the group is up, at once or after a rebuild within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    async def check(self, timeout_s: float = 10.0) -> bool:
        """Ask every rank; True when all answer within `timeout_s`."""
        if not self.alive():
            return False
        try:
            async with asyncio.timeout(timeout_s):
                return all(await asyncio.gather(*(rank.ping.remote() for rank in self._ranks)))
        except (TimeoutError, RayError):
            return False

    async def supervise(self) -> None:
        """Rebuild the group whenever a rank dies; returns when rebuilding has failed `max_rebuilds` times in a row."""
        while True:
            reason = await self._first_death()
            self._ready.clear()
            log.error("target group %d lost a rank, rebuilding: %s", self.generation, reason)
            self._kill()
            if self._on_lost is not None:
                self._on_lost(self.generation)
            for attempt in range(self._max_rebuilds):
                try:
                    await self._build()
                    break
                except Exception as error:  # whatever it was, the next attempt starts from nothing
                    log.error("rebuilding the target group failed (attempt %d): %s", attempt + 1, error)
                    await asyncio.sleep(min(30.0, 2.0**attempt))
            else:
                log.critical("giving the target group up after %d attempts", self._max_rebuilds)
                return

    async def shutdown(self, timeout_s: float = 5.0) -> None:
        """Stop watching, let the ranks end in order within `timeout_s`, then kill what is left. Idempotent."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        if self.alive():
            self._ready.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._ranks[0].shutdown.remote()
            except (TimeoutError, RayError) as error:
                log.info("the target group did not end in order: %s", error)
        self._kill()
        self._ranks = []

    async def _build(self) -> ReplicaInfo:
        self.generation += 1
        size = self._spec.tensor_parallel_size
        worker = ray.remote(RankWorker)
        self._ranks = [
            worker.options(**{"max_concurrency": MAX_CONCURRENCY, **options, "max_restarts": 0}).remote(
                self._spec, rank, self._law_support, self._inline, self._watch, self._name
            )
            for rank, options in enumerate(self._options)
        ]
        try:
            async with asyncio.timeout(self._start_timeout_s):
                meeting = None
                if size > 1:
                    nodes = await asyncio.gather(*(rank.locate.remote() for rank in self._ranks))
                    host = LOOPBACK if len(set(nodes)) == 1 else nodes[0]
                    meeting = await self._ranks[0].rendezvous.remote(host)
                infos = await asyncio.gather(*(rank.start.remote(meeting) for rank in self._ranks))
                self._endpoint = await self._ranks[0].listen.remote()
        except BaseException as error:
            self._kill()
            if isinstance(error, RayTaskError) and isinstance(error.cause, ValueError):
                raise ValueError(str(error.cause)) from error  # one clear line for the user
            if isinstance(error, TimeoutError):
                raise GroupDown(
                    f"the ranks were not up after {self._start_timeout_s:g} s: check that the cluster has the "
                    "resources of every rank's actor options"
                ) from error
            if isinstance(error, RayActorError):
                raise GroupDown(f"a rank died while starting: {error}") from error
            raise
        info: ReplicaInfo = infos[0]
        self._ready.set()
        return info

    async def _first_death(self) -> str:
        """Wait until a rank dies; why."""
        holds = [asyncio.wrap_future(rank.hold.remote().future()) for rank in self._ranks]
        try:
            done, _ = await asyncio.wait(holds, return_when=asyncio.FIRST_COMPLETED)
            return "; ".join(str(hold.exception()).splitlines()[0] for hold in done)
        finally:
            for hold in holds:
                hold.cancel()

    def _kill(self) -> None:
        for rank in self._ranks:
            ray.kill(rank, no_restart=True)

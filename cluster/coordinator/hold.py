"""A sequence's hold on one tier: its lease, what the replica holds, and how a lost one is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.messages import Ids
from cluster.coordinator.figures import FigureCounter, logger
from cluster.coordinator.sequence import Held, Sequence
from cluster.coordinator.settings import CoordinatorSettings
from cluster.coordinator.tier import Lease, NoReplica, PoolFull, ReplicaLost, Tier

Clock = Callable[[], float]
ASLEEP = "asleep"  # a pool that was scaled to none, as a reason and as a replica


class Hold:
    """At most one lease of `tier`, replaced in the background so that a poor pool costs no round its time."""

    def __init__(
        self, tier: Tier, index: int, sequence: Sequence,
        settings: CoordinatorSettings, clock: Clock, figures: FigureCounter,
        is_asleep: Callable[[int], bool] = lambda index: False,
    ) -> None:
        """`is_asleep`: whether the pool of a tier was scaled to no replica. Asking for a lease wakes it up."""
        self.index = index
        self.lease: Lease | None = None
        self.held: Held | None = None
        self.ever_leased = False
        self._tier = tier
        self._sequence = sequence
        self._settings = settings
        self._clock = clock
        self._figures = figures
        self._is_asleep = is_asleep
        self._leasing: asyncio.Task[Lease] | None = None
        self._releases: set[asyncio.Task[None]] = set()
        self._avoid: dict[str, float] = {}  # replica id -> until when
        self._failures = 0
        self._retry_at = float("-inf")
        self._full = False  # what the last try found
        self._unasked = False  # a lease is under way that nobody has waited for yet

    def start(self) -> None:
        """Begin to seek a lease; the first `poll` waits for it as if it had begun it."""
        if self.lease is None and self._leasing is None and not self._is_asleep(self.index):
            self._begin(self._clock())
            self._unasked = True

    async def poll(self) -> Lease | None:
        """A lease if there is one now. A draining one serves until its successor is there."""
        if self.lease is None or self.lease.revoked:
            if not self._is_asleep(self.index):
                await self._try_lease(self._settings.lease_grace_s)
            else:
                self._let_go()
                await self._try_lease(0.0)  # wakes the pool, which takes longer than a round may wait
        return self.lease

    @property
    def asleep(self) -> bool:
        """Whether the pool has no replica, by choice of its autoscaler, and this sequence holds none."""
        return (self.lease is None or self.lease.revoked) and self._is_asleep(self.index)

    def sleeps(self) -> bool:
        """Whether it is asleep and this sequence has not called it; gives back what the last replica still holds."""
        if self._leasing is not None or not self.asleep:
            return False
        self._let_go()
        return True

    def _let_go(self) -> None:
        """The pool's last replica drains: it waits for nothing but its leases."""
        lease, self.lease, self.held = self.lease, None, None
        if lease is not None:
            self._release(lease)

    async def acquire(self, wait_s: float) -> Lease:
        """A lease, waiting up to `wait_s`. Raises `NoReplica`.

        A full pool ends the wait of a sequence that is new there at once (its tier has waited already): that
        is overload. One that lost its replica half-way goes on waiting for a place.
        """
        end = self._clock() + wait_s
        while True:
            left = end - self._clock()
            if self._leasing is None and self._retry_at > self._clock():
                await asyncio.sleep(max(0.0, min(self._retry_at - self._clock(), left)))
            await self._try_lease(max(0.0, left), patient=True)
            if self.lease is not None:
                return self.lease
            if self._full and not self.ever_leased:
                raise PoolFull(f"all replicas of tier {self.index} are full")
            if self._clock() >= end:
                raise NoReplica(f"no replica of tier {self.index} within {wait_s:.1f} s")

    async def _try_lease(self, wait_s: float, *, patient: bool = False) -> None:
        """Start or look at a lease under way; only the call that starts it waits, unless `patient`."""
        now = self._clock()
        if self._leasing is None:
            if now < self._retry_at:
                return
            self._leasing = self._begin(now)
            patient = True
        if patient or self._unasked:
            self._unasked = False
            await asyncio.wait({self._leasing}, timeout=wait_s)
        if self._leasing.done():
            self._adopt(self._leasing)
            self._leasing = None

    def _begin(self, now: float) -> asyncio.Task[Lease]:
        if self.lease is not None:
            self._avoid[self.lease.replica_id] = now + self._settings.avoid_lost_s
        self._avoid = {replica: until for replica, until in self._avoid.items() if until > now}
        self._leasing = asyncio.create_task(
            self._tier.lease(self._sequence.sequence_id, frozenset(self._avoid), self._sequence.tokens)
        )
        return self._leasing

    def _adopt(self, leasing: asyncio.Task[Lease]) -> None:
        error = asyncio.CancelledError() if leasing.cancelled() else leasing.exception()
        self._full = isinstance(error, PoolFull)
        if error is not None:
            reason = "no_replica" if isinstance(error, (NoReplica, ReplicaLost)) else "lease_error"
            self._figures.degrade(self.index, reason, detail=type(error).__name__)
            # Unlike a lost lease, a pool that has nothing is not asked again at once.
            self._failures = max(self._failures, 1)
            self._back_off()
            return
        if self.lease is not None:
            self._release(self.lease)
        if self.ever_leased:
            self._figures.lease_moves += 1
        self.lease, self.held, self.ever_leased = leasing.result(), None, True

    def served(self, held: Held) -> None:
        """The replica answered a call: it now holds `held`."""
        self.held = held
        self._failures = 0

    def uncertain(self) -> None:
        """A call was abandoned: it may or may not have run."""
        self.held = self.held.certain() if self.held else None

    def drop(self, reason: str, *, lost: bool, detail: str | None = None) -> None:
        """Give up a replica that died (`lost`) or was late or failed; the next one is sought elsewhere."""
        lease, self.lease, self.held = self.lease, None, None
        self._figures.degrade(self.index, reason, lease.replica_id if lease else None, detail)
        if lease is not None:
            avoid_s = self._settings.avoid_lost_s if lost else self._settings.avoid_slow_s
            self._avoid[lease.replica_id] = self._clock() + avoid_s
            self._release(lease)
        self._back_off()

    def _back_off(self) -> None:
        delay = self._settings.backoff_s * 2.0 ** min(self._failures - 1, 30) if self._failures else 0.0
        self._retry_at = self._clock() + min(delay, self._settings.backoff_max_s)
        self._failures += 1

    def _release(self, lease: Lease, held: Ids | None = None) -> None:
        task = asyncio.create_task(self._release_quietly(lease, held))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release_quietly(self, lease: Lease, held: Ids | None) -> None:
        try:
            await lease.release(held)
        except Exception as error:  # one lease that cannot be given back must not keep the others
            logger.warning(
                "a lease of tier %d could not be released: %s", self.index, type(error).__name__,
                extra={"request_id": self._sequence.sequence_id, "tier": self.index, "replica_id": lease.replica_id},
            )

    def _release_late(self, leasing: asyncio.Task[Lease]) -> None:
        if not leasing.cancelled() and leasing.exception() is None:
            self._release(leasing.result())

    async def close(self) -> None:
        """Give everything back, within `release_timeout_s`. Idempotent, raises nothing."""
        leasing, self._leasing = self._leasing, None
        if leasing is not None:
            leasing.add_done_callback(self._release_late)  # it may have been granted in the meantime
            leasing.cancel()
            await asyncio.wait({leasing}, timeout=self._settings.release_timeout_s)
            await asyncio.sleep(0)  # lets the callback run
        lease, self.lease, self.held = self.lease, None, None
        if lease is not None:
            self._release(lease, self._sequence.tokens)
        if self._releases:
            await asyncio.wait(set(self._releases), timeout=self._settings.release_timeout_s)

"""A pool of simulated replicas behind the coordinator's protocols: leases, hops and drafts under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from actors.messages import AheadPlan, Context, Draft, DraftShape, Enumeration, Ids, Verdict
from cluster.coordinator.tier import NO_TOKENS, DraftHandle, EnumerationHandle, PoolFull, ReplicaLost
from cluster.simulation.clock import VirtualLoop
from cluster.simulation.replica import Replica

T = TypeVar("T")

AVOID_PATIENCE_S = 0.35  # how long a lease looks for a replica that it need not avoid


class Handle:
    """A draft under way."""

    def __init__(self, outcome: asyncio.Future[Draft]) -> None:
        self._outcome = outcome

    async def wait(self, timeout_s: float) -> bool:
        """True when the draft is ready within `timeout_s`."""
        if not self._outcome.done():
            await asyncio.wait({self._outcome}, timeout=timeout_s)
        return self._outcome.done()

    def ready(self) -> Draft:
        """The draft, which is there."""
        return self._outcome.result()

    async def fetch(self) -> Draft:
        """The draft."""
        return await asyncio.shield(self._outcome)


class Enumerating:
    """An enumeration under way."""

    def __init__(self, outcome: asyncio.Future[Enumeration]) -> None:
        self._outcome = outcome

    def ready(self) -> Enumeration:
        """The enumeration, which is there."""
        return self._outcome.result()

    async def fetch(self) -> Enumeration:
        """The enumeration. Cancelling this abandons the call."""
        return await self._outcome


class PoolLease:
    """A sequence's hold on one replica. A call pays `hop_s` on its way there and on its way back.

    As over the wire, a draft travels through the coordinator, so a synchronous round of two tiers pays four hops.
    """

    revoked = False

    def __init__(self, pool: Pool, replica: Replica, sequence_id: str) -> None:
        self._pool = pool
        self._replica = replica
        self._sequence_id = sequence_id
        self._released = False

    @property
    def replica_id(self) -> str:
        """Identity of the replica."""
        return self._replica.replica_id

    def propose(self, context: Context, shape: DraftShape) -> DraftHandle:
        """Start drafting."""
        return Handle(self._call(partial(self._replica.propose, context, shape)))

    def verify(self, context: Context, *drafts: DraftHandle | Draft, want_laws: bool) -> Awaitable[Verdict]:
        """Verify once the drafts are there."""
        return self._verify(context, drafts, want_laws)

    def step(self, context: Context, shape: DraftShape) -> Awaitable[Verdict]:
        """Refused: give an inline tier a pool of its own without hops."""
        raise ReplicaLost(f"{self.replica_id} is simulated and has no tiers inline")

    def enumerate(
        self, context: Context, draft: DraftHandle | Draft, verify_round: int, plan: AheadPlan
    ) -> EnumerationHandle:
        """Start drafting for the outcomes of a pass over `draft`, which is there."""
        if isinstance(draft, Handle):
            draft = draft.ready()
        assert isinstance(draft, Draft)
        return Enumerating(self._call(partial(self._replica.enumerate, context, draft, verify_round, plan)))

    def verify_ahead(self, round: int, verify_round: int, enumeration: EnumerationHandle) -> Awaitable[Verdict]:
        """Verify the branch that fits as soon as it is known which one does."""
        assert isinstance(enumeration, Enumerating)
        return self._call(
            partial(self._replica.verify_ahead, self._sequence_id, round, verify_round, enumeration.ready())
        )

    async def _verify(self, context: Context, drafts: Sequence[DraftHandle | Draft], want_laws: bool) -> Verdict:
        pieces = [draft if isinstance(draft, Draft) else await draft.fetch() for draft in drafts]
        return await self._call(partial(self._replica.verify, context, pieces, want_laws))

    def _call(self, send: Callable[[Callable[[T], None]], None]) -> asyncio.Future[T]:
        """Send after a hop; the answer arrives a hop after it was given. A cancelled future takes no answer."""
        loop, hop_s = self._pool.loop, self._pool.hop_s
        outcome: asyncio.Future[T] = loop.create_future()

        def settle(answer: T) -> None:
            if not outcome.done():
                outcome.set_result(answer)

        def send_back(answer: T) -> None:
            loop.call_later(hop_s, settle, answer)

        def deliver() -> None:
            if outcome.done() or self._released:
                return
            try:
                send(settle if hop_s == 0 else send_back)
            except ValueError as error:
                outcome.set_exception(error)

        if hop_s == 0:
            deliver()
        else:
            loop.call_later(hop_s, deliver)
        return outcome

    async def release(self, held: Ids | None = None) -> None:
        """Free the sequence and its place. Idempotent."""
        if not self._released:
            self._released = True
            self._replica.close(self._sequence_id)
            self._pool.give_back(self._replica)


class Pool:
    """The replicas of one tier, each with room for `max_sequences`."""

    def __init__(
        self, loop: VirtualLoop, replicas: Sequence[Replica], max_sequences: int, hop_s: float, wait_s: float
    ) -> None:
        self.loop = loop
        self.replicas = replicas
        self.hop_s = hop_s
        self._max_sequences = max_sequences
        self._wait_s = wait_s
        self._queue: dict[asyncio.Future[None], None] = {}  # who waits for a place, in order

    async def lease(self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS) -> PoolLease:
        """The least loaded replica that has room. Raises `PoolFull` when none has any within the pool's wait."""
        begun = self.loop.time()
        while True:
            waited_s = self.loop.time() - begun
            free = [replica for replica in self.replicas if replica.num_leases < self._max_sequences]
            welcome = [replica for replica in free if replica.replica_id not in avoid]
            if not welcome and waited_s >= AVOID_PATIENCE_S:
                welcome = free
            if welcome:
                chosen = min(welcome, key=lambda replica: replica.num_leases)
                chosen.num_leases += 1
                return PoolLease(self, chosen, sequence_id)
            if waited_s >= self._wait_s:
                raise PoolFull(f"all {len(self.replicas)} replicas of the pool are full")
            await self._place(min(self._wait_s, AVOID_PATIENCE_S if free else self._wait_s) - waited_s)

    async def _place(self, timeout_s: float) -> None:
        turn: asyncio.Future[None] = self.loop.create_future()
        self._queue[turn] = None
        try:
            await asyncio.wait({turn}, timeout=max(timeout_s, 1e-6))
        finally:
            self._queue.pop(turn, None)

    def give_back(self, replica: Replica) -> None:
        """A place is free again; the first one in the queue looks."""
        replica.num_leases -= 1
        for turn in self._queue:
            if not turn.done():
                turn.set_result(None)
                break

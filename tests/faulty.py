"""Tiers in this process whose replicas stall, reorder, forget, lie, drain and die by a seeded schedule.

What befalls the n-th call of a kind of one sequence in one tier is a function of the seed and these names, whatever the
order in which sequences are served. Replicas are real workers (drafters, verifiers, and several of them in one
process); a replica that dies loses all its sequences and comes back under another name, knowing nothing.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from actors.engine.jobs import ReplicaFull
from actors.messages import AheadPlan, Context, Draft, DraftShape, Enumeration, Ids, Origin, Verdict
from actors.sampling.params import VerifyMode
from cluster.coordinator.tier import (
    NO_TOKENS,
    DraftHandle,
    DraftLost,
    EnumerationHandle,
    Lease,
    NoReplica,
    NoRoom,
    ReplicaLost,
)

Answer = TypeVar("Answer")

DRAFT_FAULTS: Mapping[str, tuple[str, ...]] = {
    "propose": ("raise", "die", "lost", "stall", "forget", "revoke", "empty", "error", "wrong", "reorder"),
    "enumerate": ("raise", "die", "lost", "stall", "forget", "empty", "error", "wrong", "late", "reorder"),
    "lease": ("none", "slow", "raise"),
}
MIDDLE_FAULTS: Mapping[str, tuple[str, ...]] = {
    "verify": ("raise", "die", "die_after", "hang", "forget", "revoke", "full", "error", "reorder"),
    "lease": ("none", "slow", "raise"),
}
TARGET_FAULTS: Mapping[str, tuple[str, ...]] = {
    "verify": ("die", "die_after", "hang", "forget", "revoke", "full", "reorder"),
    "verify_ahead": ("miss", "raise", "die", "die_after", "hang", "late", "full", "reorder"),
    "lease": ("none", "slow", "raise"),
}
FOREVER_S = 1e6
_MISSED = Verdict(NO_TOKENS, 0, 0, Origin.PLAIN, missed=True)


@dataclass
class Schedule:
    """Which fault befalls which call; and how often each really did."""

    seed: int
    rate: float  # of calls
    without: frozenset[str] = frozenset()  # faults that are not injected
    injected: Counter[str] = field(default_factory=Counter)
    _counts: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def draw(self, tier: str, sequence_id: str, kind: str, known: Sequence[str]) -> tuple[str | None, random.Random]:
        """The fault of this call, if there is one, and chance of its own."""
        name = (tier, sequence_id, kind)
        number = self._counts[name]
        self._counts[name] += 1
        chance = random.Random(zlib.crc32(repr((self.seed, *name, number)).encode()))
        known = [fault for fault in known if fault not in self.without]
        fault = chance.choice(known) if known and chance.random() < self.rate else None
        if fault is not None:
            self.injected[f"{kind}:{fault}"] += 1
        return fault, chance


@dataclass
class Meetings:
    """Lets a verdict wait for the enumeration of its pass, as it does where the target is slow: then rounds overlap."""

    wait_s: float = 5.0
    _answered: dict[tuple[str, int], asyncio.Event] = field(default_factory=dict)

    def begin(self, sequence_id: str, verify_round: int) -> asyncio.Event:
        """An enumeration is under way."""
        return self._answered.setdefault((sequence_id, verify_round), asyncio.Event())

    async def wait(self, sequence_id: str, verify_round: int) -> None:
        """Until it has been answered, and its answer passed on; at once if there is none."""
        await asyncio.sleep(0)  # the call for it leaves after the pass
        await asyncio.sleep(0)
        event = self._answered.pop((sequence_id, verify_round), None)
        if event is None:
            return
        await asyncio.wait({asyncio.ensure_future(event.wait())}, timeout=self.wait_s)
        for _ in range(4):
            await asyncio.sleep(0)


class _Handle:
    """An answer under way."""

    def __init__(self, coming: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.ensure_future(coming)
        self._task.add_done_callback(_seen)

    def result(self) -> Any:
        return self._task.result()


class FaultyDraft(_Handle):
    """A draft under way."""

    async def wait(self, timeout_s: float) -> bool:
        await asyncio.wait({self._task}, timeout=timeout_s)
        return self._task.done()

    async def fetch(self) -> Draft:
        draft: Draft = await asyncio.shield(self._task)
        return draft


class FaultyEnumeration(_Handle):
    """An enumeration under way."""

    async def fetch(self) -> Enumeration:
        enumeration: Enumeration = await self._task
        return enumeration


class FaultyLease:
    """A sequence's hold on one replica, until that dies."""

    def __init__(self, tier: FaultyTier, replica: int, replica_id: str, sequence_id: str) -> None:
        self.replica = replica
        self.replica_id = replica_id
        self.sequence_id = sequence_id
        self.revoked = False
        self.is_dead = False
        self.is_released = False
        self._tier = tier
        self._worker = tier.workers[replica]

    # --- drafting

    def propose(self, context: Context, shape: DraftShape) -> DraftHandle:
        fault, chance = self._draw("propose")
        self._begin(fault)
        return FaultyDraft(self._propose(context, shape, fault, chance))

    async def _propose(
        self, context: Context, shape: DraftShape, fault: str | None, chance: random.Random
    ) -> Draft:
        if fault == "stall":
            await asyncio.sleep(FOREVER_S)
        if fault == "lost":
            self._tier.kill(self.replica)
            raise ReplicaLost(self.replica_id)
        if fault in ("empty", "error"):
            return Draft(NO_TOKENS, error="broken" if fault == "error" else None)
        draft = await self._answer(lambda: self._worker.propose(context, shape), fault, chance)
        return wrong(draft, context, chance) if fault == "wrong" else draft

    def enumerate(
        self, context: Context, draft: DraftHandle | Draft, verify_round: int, plan: AheadPlan
    ) -> EnumerationHandle:
        fault, chance = self._draw("enumerate")
        self._begin(fault)
        made: Draft = draft if isinstance(draft, Draft) else draft.result()  # type: ignore[attr-defined]
        return FaultyEnumeration(self._enumerate(context, made, verify_round, plan, fault, chance))

    async def _enumerate(
        self, context: Context, draft: Draft, verify_round: int, plan: AheadPlan, fault: str | None,
        chance: random.Random,
    ) -> Enumeration:
        answered = self._tier.meetings.begin(self.sequence_id, verify_round)
        try:
            if fault == "stall":
                answered.set()  # nobody need wait for what never comes
                await asyncio.sleep(FOREVER_S)
            if fault == "lost":
                self._tier.kill(self.replica)
                raise ReplicaLost(self.replica_id)
            if fault in ("empty", "error"):
                return Enumeration(verify_round, error="broken" if fault == "error" else None)
            if fault == "late":
                answered.set()
            found: Enumeration = await self._answer(
                lambda: self._worker.enumerate(context, draft, verify_round, plan), fault, chance
            )
            if fault == "wrong":
                branches = tuple(replace(b, draft=wrong(b.draft, context, chance)) for b in found.branches)
                return replace(found, branches=branches)
            return found
        finally:
            answered.set()

    # --- verifying

    async def verify(self, context: Context, *drafts: DraftHandle | Draft, want_laws: bool) -> Verdict:
        if self.is_dead:
            raise ReplicaLost(self.replica_id)
        try:
            pieces = [draft if isinstance(draft, Draft) else await draft.fetch() for draft in drafts]
        except ReplicaLost as error:
            raise DraftLost(str(error)) from error
        verdict = await self._verdict("verify", lambda: self._worker.verify(context, pieces, want_laws))
        await self._tier.meetings.wait(self.sequence_id, context.round)
        return verdict

    async def step(self, context: Context, shape: DraftShape) -> Verdict:
        return await self._verdict("verify", lambda: self._worker.step(context, shape))

    async def verify_ahead(self, round: int, verify_round: int, enumeration: EnumerationHandle) -> Verdict:
        given = enumeration.result()  # type: ignore[attr-defined]
        verdict = await self._verdict(
            "verify_ahead", lambda: self._worker.verify_ahead(self.sequence_id, round, given)
        )
        await self._tier.meetings.wait(self.sequence_id, round)
        return verdict

    async def _verdict(self, kind: str, call: Any) -> Verdict:
        fault, chance = self._draw(kind)
        self._begin(fault)
        if fault == "hang":
            await asyncio.sleep(FOREVER_S)
        if fault == "full":
            raise NoRoom(self.replica_id)
        if fault == "error":
            return replace(_MISSED, missed=False, error="broken")
        if fault == "miss":
            return _MISSED
        verdict: Verdict = await self._answer(call, fault, chance)
        if fault == "die_after":
            self._tier.kill(self.replica)
            raise ReplicaLost(self.replica_id)
        return verdict

    # --- both

    def _draw(self, kind: str) -> tuple[str | None, random.Random]:
        return self._tier.draw(self.sequence_id, kind)

    def _begin(self, fault: str | None) -> None:
        if fault == "die":
            self._tier.kill(self.replica)
        if self.is_dead:
            raise ReplicaLost(self.replica_id)
        if fault == "raise":
            raise RuntimeError("broken")
        if fault == "revoke":
            self.revoked = True
        if fault == "forget":
            self._worker.close(self.sequence_id)

    async def _answer(self, call: Any, fault: str | None, chance: random.Random) -> Any:
        if fault == "late":
            await _pause(chance)
        if self.is_dead or self.is_released:
            raise ReplicaLost(self.replica_id)
        future: Future[Any] = call()
        try:
            answer = await asyncio.shield(asyncio.wrap_future(future))
        except ReplicaFull as error:
            raise NoRoom(str(error)) from error
        if fault == "reorder":
            await _pause(chance)
        if self.is_dead:
            raise ReplicaLost(self.replica_id)
        return answer

    async def release(self, held: Ids | None = None) -> None:
        if self.is_released:
            return
        self.is_released = True
        self._tier.leases.remove(self)
        if not self.is_dead:
            self._worker.close(self.sequence_id, held)


class FaultyTier:
    """A pool of a few replicas."""

    def __init__(
        self, name: str, workers: Sequence[Any], faults: Mapping[str, tuple[str, ...]], schedule: Schedule,
        meetings: Meetings,
    ) -> None:
        self.name = name
        self.workers = workers
        self.meetings = meetings
        self.leases: list[FaultyLease] = []
        self.num_deaths = 0
        self._faults = faults
        self._schedule = schedule
        self._lives = [0] * len(workers)

    def draw(self, sequence_id: str, kind: str) -> tuple[str | None, random.Random]:
        """The fault of a call."""
        return self._schedule.draw(self.name, sequence_id, kind, self._faults.get(kind, ()))

    async def lease(self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS) -> Lease:
        """A replica that is not to be avoided, if there is one, and that the sequence does not hold already."""
        fault, chance = self.draw(sequence_id, "lease")
        if fault == "none":
            raise NoReplica(self.name)
        if fault == "raise":
            raise RuntimeError("broken")
        if fault == "slow":
            await _pause(chance)
        held = {lease.replica for lease in self.leases if lease.sequence_id == sequence_id}
        free = [i for i in range(len(self.workers)) if i not in held]
        if not free:
            raise NoReplica(self.name)
        best = [i for i in free if self._replica_id(i) not in avoid]
        replica = chance.choice(best or free)
        lease = FaultyLease(self, replica, self._replica_id(replica), sequence_id)
        self.leases.append(lease)
        return lease

    def kill(self, replica: int) -> None:
        """The process behind a replica ends, and with it all that it held."""
        self.num_deaths += 1
        self._lives[replica] += 1
        for lease in self.leases:
            if lease.replica == replica and not lease.is_dead:
                lease.is_dead = lease.revoked = True
                self.workers[replica].close(lease.sequence_id)

    def _replica_id(self, replica: int) -> str:
        return f"{self.name}/{replica}.{self._lives[replica]}"


def wrong(draft: Draft, context: Context, chance: random.Random) -> Draft:
    """Other ids, some outside any vocabulary, where that is legal: a token with a law must be a sample of it."""
    if context.sampling.mode in (VerifyMode.REJECTION, VerifyMode.BLOCK) or not len(draft.tokens):
        return draft
    tokens = draft.tokens.copy()
    for place in range(len(tokens)):
        if chance.random() < 0.4:
            tokens[place] = chance.choice((-1, 0, 3, 7, 10**6))
    return replace(draft, tokens=tokens.astype(np.int32))


async def _pause(chance: random.Random) -> None:
    """Others come first."""
    for _ in range(chance.randrange(1, 30)):
        await asyncio.sleep(0)
    await asyncio.sleep(0.002 * chance.random())


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()

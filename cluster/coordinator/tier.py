"""What the coordinator needs from a tier, whatever carries the calls (Ray actors, one process, emulation)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

import numpy as np

from actors.messages import AheadPlan, Context, Draft, DraftShape, Enumeration, Ids, Verdict

NO_TOKENS: Ids = np.empty(0, np.int32)


class DraftHandle(Protocol):
    """A draft under way: its payload goes to the verifier without passing through the coordinator."""

    async def wait(self, timeout_s: float) -> bool:
        """True when the draft is ready (or has failed) within `timeout_s`; transfers no payload."""

    async def fetch(self) -> Draft:
        """The payload itself. Raises `ReplicaLost` if its producer died."""


class EnumerationHandle(Protocol):
    """An enumeration under way; like a draft, it goes on to the verifier as it came."""

    async def fetch(self) -> Enumeration:
        """The payload itself. Raises `ReplicaLost` if its producer died. Cancelling this abandons the call."""


class Lease(Protocol):
    """A sequence's hold on one replica of a tier."""

    @property
    def replica_id(self) -> str:
        """Identity of the replica, for logs and for avoiding it after a failure."""

    @property
    def revoked(self) -> bool:
        """True once the replica is draining: finish the round, then lease elsewhere."""

    def propose(self, context: Context, shape: DraftShape) -> DraftHandle:
        """Start drafting (tier 0). Returns at once."""

    def verify(self, context: Context, *drafts: DraftHandle | Draft, want_laws: bool) -> Awaitable[Verdict]:
        """Verify the concatenation of `drafts` after `context`; none means a plain step.

        Cancelling the awaitable abandons the call. Raises `ReplicaLost` when the replica died. A draft
        whose producer died surfaces as `DraftLost`; the call may be repeated without it.
        """

    def step(self, context: Context, shape: DraftShape) -> Awaitable[Verdict]:
        """Have the replica's own process draft after `context`, and verify that (a target with tiers inline)."""

    def enumerate(
        self, context: Context, draft: DraftHandle | Draft, verify_round: int, plan: AheadPlan
    ) -> EnumerationHandle:
        """Start drafting for the outcomes of the pass of `verify_round` over `draft`, which is there (tier 0)."""

    def verify_ahead(self, round: int, verify_round: int, enumeration: EnumerationHandle) -> Awaitable[Verdict]:
        """Once the pass of `verify_round` is decided, verify the branch of `enumeration` that fits, as `round`.

        The verdict is `missed` when none fits. Cancelling the awaitable abandons the call. Raises as `verify` does.
        """

    async def release(self, held: Ids | None = None) -> None:
        """Give the replica back and free the sequence there. Idempotent; never raises for a dead replica.

        `held`: the committed tokens, when the replica may keep what it has of them for a later request.
        """


class Announces(Protocol):
    """What a lease may do besides: let its replica know of a verify call before the draft for it is there."""

    def announce(self, context: Context, draft: DraftHandle, *, want_laws: bool) -> None:
        """The next call of `verify` will have these arguments. One that has others takes this back."""


def announce(lease: Lease, context: Context, draft: DraftHandle, *, want_laws: bool) -> None:
    """Have a lease announce a verify call, if it can (`Announces`)."""
    if (announces := getattr(lease, "announce", None)) is not None:
        announces(context, draft, want_laws=want_laws)


class Tier(Protocol):
    """One pool."""

    async def lease(self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS) -> Lease:
        """Hold a replica, best one that knows the beginning of `tokens`, with which the first call will come.

        Raises `NoReplica` when none is to be had in time, `PoolFull` when all that there are stay full.
        """


class ReplicaLost(Exception):
    """The replica behind a lease died or was torn down."""


class NoRoom(ReplicaLost):
    """The replica behind a lease lives, but has no room for the call: another may have, or this one later."""


class DraftLost(Exception):
    """A draft passed to `verify` never came: its producer died or failed."""


class NoReplica(Exception):
    """No replica of the tier could be leased in time."""


class PoolFull(NoReplica):
    """Every replica of the tier holds as many sequences as it can."""

"""The coordinator's fakes as a cluster's tiers are: their calls take a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.unit.coordinator.fakes import FakeLease, FakeTier

Carried = list[tuple[str, bytes]]


@dataclass
class CarryingTier:
    tier: FakeTier
    carried: Carried

    async def lease(self, sequence_id: str, avoid: Any, tokens: Any, trace: bytes = b"") -> CarryingLease:
        self.carried.append(("lease", trace))
        return CarryingLease(await self.tier.lease(sequence_id, avoid, tokens), self.carried)


@dataclass
class CarryingLease:
    lease: FakeLease
    carried: Carried

    @property
    def replica_id(self) -> str:
        return self.lease.replica_id

    @property
    def revoked(self) -> bool:
        return self.lease.revoked

    def propose(self, context: Any, shape: Any, trace: bytes = b"") -> Any:
        self.carried.append(("propose", trace))
        handle: Any = self.lease.propose(context, shape)
        handle.payload = handle.outcome
        return handle

    async def verify(self, context: Any, *drafts: Any, want_laws: bool, trace: bytes = b"") -> Any:
        self.carried.append(("verify", trace))
        return await self.lease.verify(context, *drafts, want_laws=want_laws)

    async def release(self, held: Any = None) -> None:
        await self.lease.release(held)

"""The bench's tiers in this process as tests need them: leases are counted, verdicts are kept."""

from __future__ import annotations

from collections.abc import Awaitable
from concurrent.futures import Future

import numpy as np

from actors.drafters.base import Drafter
from actors.drafters.model import ModelDrafter
from actors.engine.step import ModelRunner
from actors.messages import Context, Draft, DraftShape, Ids, ReplicaStats, Verdict
from actors.spec import ModelSpec
from actors.verifier import Verifier
from cluster.bench import local
from cluster.coordinator.tier import NO_TOKENS, DraftHandle, EnumerationHandle, Lease

MAX_CONTEXT_TOKENS = 1024  # of a spec that does not say


def verifier(runner: ModelRunner, spec: ModelSpec) -> Verifier:
    """A verifying tier in this process."""
    return local.local_verifier(runner, spec, spec.max_context_tokens or MAX_CONTEXT_TOKENS)


def model_drafter(runner: ModelRunner, spec: ModelSpec) -> ModelDrafter:
    """A drafting tier in this process."""
    return local.local_drafter(runner, spec, spec.max_context_tokens or MAX_CONTEXT_TOKENS)


class RandomDrafter(Drafter):
    """An adversary: random ids that know nothing of the text (some outside the vocabulary)."""

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._vocab_size = vocab_size

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """As many random ids as asked for."""
        done: Future[Draft] = Future()
        ids = self._rng.integers(0, self._vocab_size + 3, shape.num_tokens).astype(np.int32)
        done.set_result(Draft(tokens=ids))
        return done

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Nothing is held."""

    def stats(self) -> ReplicaStats:
        """Nothing to count."""
        return ReplicaStats(0, 0, 0, 0, 0, 0)

    def shutdown(self) -> None:
        """Nothing runs."""


class LocalLease(local.LocalLease):
    """A hold that its tier keeps an account of."""

    def __init__(self, tier: LocalTier, sequence_id: str) -> None:
        super().__init__(tier.worker, sequence_id)
        self._tier = tier

    def verify(self, context: Context, *drafts: DraftHandle | Draft, want_laws: bool) -> Awaitable[Verdict]:
        """As any lease, and keep the verdict."""
        return self._keep(super().verify(context, *drafts, want_laws=want_laws))

    def verify_ahead(self, round: int, verify_round: int, enumeration: EnumerationHandle) -> Awaitable[Verdict]:
        """As any lease, and keep the verdict."""
        return self._keep(super().verify_ahead(round, verify_round, enumeration))

    async def _keep(self, coming: Awaitable[Verdict]) -> Verdict:
        verdict = await coming
        self._tier.verdicts.append(verdict)
        return verdict

    async def release(self, held: Ids | None = None) -> None:
        """Close the sequence, the first time."""
        if self in self._tier.leases:
            self._tier.leases.remove(self)
            await super().release(held)


class LocalTier(local.LocalTier):
    """One replica of a tier in this process, with the leases that are out and all its verdicts."""

    def __init__(self, worker: Drafter | Verifier) -> None:
        super().__init__(worker)
        self.worker = worker
        self.leases: list[LocalLease] = []
        self.verdicts: list[Verdict] = []

    async def lease(self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS) -> Lease:
        """Always to be had."""
        lease = LocalLease(self, sequence_id)
        self.leases.append(lease)
        return lease

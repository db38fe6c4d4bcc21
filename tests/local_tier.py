"""Tiers in this process: the real engine, verifier and drafters under the real coordinator, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Future

import numpy as np

from actors.drafters.base import Drafter
from actors.drafters.model import ModelDrafter
from actors.engine.engine import Engine
from actors.engine.runner import LocalRunner
from actors.messages import Context, Draft, DraftShape, Ids, ReplicaInfo, ReplicaStats, Verdict
from actors.spec import ModelSpec
from actors.verifier import Verifier
from cluster.coordinator.tier import NO_TOKENS, DraftHandle, DraftLost, Lease, ReplicaLost


def engine_and_info(runner: LocalRunner, spec: ModelSpec) -> tuple[Engine, ReplicaInfo]:
    """An engine over a runner, and what its replica would say of itself."""
    longest = spec.max_context_tokens or 1024
    info = ReplicaInfo(spec.tier, spec.model, runner.vocab_size, longest, runner.num_pages, spec.page_tokens, "x")
    return Engine(runner, spec, longest), info


def verifier(runner: LocalRunner, spec: ModelSpec, law_support: int = 64) -> Verifier:
    """A verifying tier in this process."""
    engine, info = engine_and_info(runner, spec)
    return Verifier(engine, info, law_support)


def model_drafter(runner: LocalRunner, spec: ModelSpec, law_support: int = 64) -> ModelDrafter:
    """A drafting tier in this process."""
    engine, info = engine_and_info(runner, spec)
    return ModelDrafter(engine, info, law_support)


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


class LocalDraft:
    """A draft under way in this process."""

    def __init__(self, future: Future[Draft]) -> None:
        self.future = future

    async def wait(self, timeout_s: float) -> bool:
        """True when ready in time."""
        done, _ = await asyncio.wait([asyncio.wrap_future(self.future)], timeout=timeout_s)
        return bool(done)

    async def fetch(self) -> Draft:
        """The payload."""
        return await asyncio.wrap_future(self.future)


class LocalLease:
    """A hold on the one replica of a local tier. `dead` makes every later call fail."""

    def __init__(self, tier: LocalTier, sequence_id: str, replica_id: str) -> None:
        self._tier = tier
        self._sequence_id = sequence_id
        self._replica_id = replica_id
        self.revoked = False

    @property
    def replica_id(self) -> str:
        """The name of the replica."""
        return self._replica_id

    def propose(self, context: Context, shape: DraftShape) -> DraftHandle:
        """Ask the drafter."""
        assert isinstance(self._tier.worker, Drafter)
        return LocalDraft(self._tier.worker.propose(context, shape))

    def verify(self, context: Context, *drafts: DraftHandle | Draft, want_laws: bool) -> Awaitable[Verdict]:
        """Ask the verifier."""
        return self._verify(context, drafts, want_laws)

    async def _verify(self, context: Context, drafts: tuple[DraftHandle | Draft, ...], want_laws: bool) -> Verdict:
        assert isinstance(self._tier.worker, Verifier)
        pieces = []
        for draft in drafts:
            try:
                pieces.append(draft if isinstance(draft, Draft) else await draft.fetch())
            except ReplicaLost as error:
                raise DraftLost(str(error)) from error
        verdict = await asyncio.wrap_future(self._tier.worker.verify(context, pieces, want_laws))
        self._tier.verdicts.append(verdict)
        return verdict

    async def release(self, held: Ids | None = None) -> None:
        """Close the sequence."""
        if self in self._tier.leases:
            self._tier.leases.remove(self)
            self._tier.worker.close(self._sequence_id, held)


class LocalTier:
    """One replica of a tier in this process."""

    def __init__(self, worker: Drafter | Verifier, name: str = "local") -> None:
        self.worker = worker
        self.name = name
        self.leases: list[LocalLease] = []
        self.verdicts: list[Verdict] = []

    async def lease(
        self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS
    ) -> Lease:
        """Always to be had."""
        lease = LocalLease(self, sequence_id, self.name)
        self.leases.append(lease)
        return lease

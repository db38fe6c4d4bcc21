"""Tiers in this process: real engines under the real coordinator, without Ray in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Future

from actors.drafters.base import Drafter
from actors.drafters.model import ModelDrafter
from actors.engine.engine import Engine
from actors.engine.jobs import ReplicaFull
from actors.engine.step import ModelRunner
from actors.inline import InlineVerifier, Verifies
from actors.messages import AheadPlan, Context, Draft, DraftShape, Enumeration, Ids, ReplicaInfo, Verdict
from actors.spec import ModelSpec
from actors.verifier import Verifier
from cluster.coordinator.tier import (
    NO_TOKENS,
    DraftHandle,
    DraftLost,
    EnumerationHandle,
    Lease,
    NoRoom,
    ReplicaLost,
)

LAW_SUPPORT = 64


def local_verifier(runner: ModelRunner, spec: ModelSpec, max_context_tokens: int) -> Verifier:
    """A verifying tier over a runner of this process; no tokenizer is needed."""
    info = _info(runner, spec, max_context_tokens)
    return Verifier(Engine(runner, spec, max_context_tokens), info, LAW_SUPPORT)


def local_drafter(runner: ModelRunner, spec: ModelSpec, max_context_tokens: int) -> ModelDrafter:
    """A drafting tier over a runner of this process."""
    info = _info(runner, spec, max_context_tokens)
    return ModelDrafter(Engine(runner, spec, max_context_tokens), info, LAW_SUPPORT)


def _info(runner: ModelRunner, spec: ModelSpec, max_context_tokens: int) -> ReplicaInfo:
    return ReplicaInfo(
        tier=spec.tier, model=spec.model, vocab_size=runner.vocab_size, max_context_tokens=max_context_tokens,
        num_pages=spec.kv_tokens // spec.page_tokens, page_tokens=spec.page_tokens, tokenizer_fingerprint="",
    )


Worker = Drafter | Verifies


class LocalDraft:
    """A draft under way in this process."""

    def __init__(self, future: Future[Draft]) -> None:
        self._future = asyncio.wrap_future(future)

    async def wait(self, timeout_s: float) -> bool:
        """True when the draft is ready, or has failed, in time."""
        done, _ = await asyncio.wait([self._future], timeout=timeout_s)
        return bool(done)

    async def fetch(self) -> Draft:
        """The payload."""
        return await asyncio.shield(self._future)

    def result(self) -> Draft:
        """The payload, which is there."""
        return self._future.result()


class LocalEnumeration:
    """An enumeration under way in this process."""

    def __init__(self, future: Future[Enumeration]) -> None:
        self._future = asyncio.wrap_future(future)

    async def fetch(self) -> Enumeration:
        """The payload. As over a wire, the worker goes on when nobody waits any more."""
        return await asyncio.shield(self._future)

    def result(self) -> Enumeration:
        """The payload, which is there."""
        return self._future.result()


class LocalLease:
    """A sequence's hold on the one replica of a local tier."""

    replica_id = "local"
    revoked = False

    def __init__(self, worker: Worker, sequence_id: str) -> None:
        self._worker = worker
        self._sequence_id = sequence_id

    def propose(self, context: Context, shape: DraftShape) -> DraftHandle:
        """Start drafting."""
        assert isinstance(self._worker, Drafter | Verifier)
        return LocalDraft(self._worker.propose(context, shape))

    def verify(self, context: Context, *drafts: DraftHandle | Draft, want_laws: bool) -> Awaitable[Verdict]:
        """Verify what the drafts hold once they are there."""
        return self._verify(context, drafts, want_laws)

    async def _verify(self, context: Context, drafts: tuple[DraftHandle | Draft, ...], want_laws: bool) -> Verdict:
        assert not isinstance(self._worker, Drafter)
        try:
            pieces = [draft if isinstance(draft, Draft) else await draft.fetch() for draft in drafts]
        except ReplicaLost as error:
            raise DraftLost(str(error)) from error
        return await _verdict(self._worker.verify(context, pieces, want_laws))

    def step(self, context: Context, shape: DraftShape) -> Awaitable[Verdict]:
        """Have the worker's own lower tiers draft, and verify that."""
        assert isinstance(self._worker, InlineVerifier)
        return _verdict(self._worker.step(context, shape))

    def enumerate(
        self, context: Context, draft: DraftHandle | Draft, verify_round: int, plan: AheadPlan
    ) -> EnumerationHandle:
        """Start drafting for the outcomes of a pass under way."""
        assert isinstance(self._worker, Drafter | Verifier)
        assert isinstance(draft, Draft | LocalDraft)
        made = draft if isinstance(draft, Draft) else draft.result()
        return LocalEnumeration(self._worker.enumerate(context, made, verify_round, plan))

    def verify_ahead(self, round: int, verify_round: int, enumeration: EnumerationHandle) -> Awaitable[Verdict]:
        """Verify the branch that fits the outcome of the pass of `verify_round`."""
        assert not isinstance(self._worker, Drafter)
        assert isinstance(enumeration, LocalEnumeration)
        return _verdict(self._worker.verify_ahead(self._sequence_id, round, enumeration.result()))

    async def release(self, held: Ids | None = None) -> None:
        """Free the sequence. Idempotent: unknown ids are ignored."""
        self._worker.close(self._sequence_id, held)


async def _verdict(coming: Future[Verdict]) -> Verdict:
    try:
        return await asyncio.wrap_future(coming)
    except ReplicaFull as error:
        raise NoRoom(f"{error}") from error


class LocalTier:
    """One replica of a tier, always to be had."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def lease(self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS) -> Lease:
        """A hold on the replica."""
        return LocalLease(self._worker, sequence_id)

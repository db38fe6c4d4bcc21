"""A ladder in one process: deterministic models, strict replicas, and faults on demand."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np

from actors.messages import AheadPlan, Branch, Context, Draft, DraftShape, Enumeration, Ids, Origin, Verdict
from actors.sampling.params import SamplingParams
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, GenerationRequest, TokenEvent
from cluster.coordinator.settings import CoordinatorSettings
from cluster.coordinator.tier import (
    NO_TOKENS,
    DraftHandle,
    DraftLost,
    EnumerationHandle,
    NoReplica,
    NoRoom,
    PoolFull,
    ReplicaLost,
)

VOCAB = 97
PROMPT = (5, 11, 2)
Model = Callable[[tuple[int, ...]], int]
Faults = Callable[[str], str | None]  # kind of call -> fault to inject

FAST = CoordinatorSettings(
    draft_timeout_s=0.3, catch_up_token_s=0.0, target_wait_s=1.0, lease_grace_s=0.3, backoff_s=0.001,
    backoff_max_s=0.005, avoid_lost_s=60.0, avoid_slow_s=5.0, release_timeout_s=1.0, max_target_moves=3,
)


def hashed(prefix: tuple[int, ...], salt: int = 0) -> int:
    return zlib.crc32(np.array([salt, *prefix], np.int64).tobytes())


def target_model(prefix: tuple[int, ...]) -> int:
    return hashed(prefix) % VOCAB


def agreeing(percent: int, salt: int = 1) -> Model:
    """A model that agrees with the target on `percent` of all prefixes."""

    def model(prefix: tuple[int, ...]) -> int:
        token = target_model(prefix)
        return token if hashed(prefix, salt) % 100 < percent else (token + 1) % VOCAB

    return model


def alone(num_tokens: int) -> list[int]:
    """What the target writes by itself."""
    ids = list(PROMPT)
    for _ in range(num_tokens):
        ids.append(target_model(tuple(ids)))
    return ids[len(PROMPT) :]


TRUTH = (*PROMPT, *alone(300))


def no_faults(kind: str) -> str | None:
    return None


@dataclass
class FakeHandle:
    outcome: asyncio.Future[Draft]

    async def wait(self, timeout_s: float) -> bool:
        await asyncio.wait({self.outcome}, timeout=timeout_s)
        return self.outcome.done()

    async def fetch(self) -> Draft:
        return await asyncio.shield(self.outcome)


@dataclass
class FakeEnumeration:
    outcome: asyncio.Future[Enumeration]

    async def fetch(self) -> Enumeration:
        return await self.outcome


@dataclass(frozen=True)
class Outcome:
    """Of a verify pass: the tokens before it, and what it came to."""

    prefix: tuple[int, ...]
    verdict: Verdict


@dataclass
class FakeTier:
    index: int
    model: Model
    faults: Faults = no_faults
    pass_ticks: int = 0  # of the event loop, for a verify pass
    pauses: random.Random | None = None  # answers come after random numbers of ticks; None: at once
    outcomes: dict[int, Outcome] = field(default_factory=dict)  # by round
    num_replicas: int = 1000
    open: int = 0
    num_leases: int = 0
    contexts: list[Context] = field(default_factory=list)
    avoids: list[frozenset[str]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    release_raises: bool = False
    last_round: int = 0
    violations: list[str] = field(default_factory=list)  # exceptions below the target are forgiven
    told: list[tuple[int, ...]] = field(default_factory=list)  # the tokens that came with each search for a lease
    kept: list[tuple[int, ...]] = field(default_factory=list)  # what each replica may keep when it is given back

    async def compute(self) -> None:
        """A verify pass."""
        for _ in range(self.pass_ticks):
            await asyncio.sleep(0)
        await self.pause()

    async def pause(self) -> None:
        """Let others go first, sometimes."""
        for _ in range(self.pauses.choice((0, 0, 1, 3, 10, 40)) if self.pauses else 0):
            await asyncio.sleep(0)

    async def lease(
        self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS
    ) -> FakeLease:
        self.told.append(tuple(tokens.tolist()))
        fault = self.faults("lease")
        self.avoids.append(avoid)
        if fault == "hang":
            await asyncio.sleep(3600)
        free = [i for i in range(self.num_replicas) if f"{self.index}/{i}" not in avoid]
        if fault == "full":
            raise PoolFull(f"tier {self.index}")
        if fault == "none" or not free:
            raise NoReplica(f"tier {self.index}")
        self.open += 1
        self.num_leases += 1
        return FakeLease(self, f"{self.index}/{free[0]}")


@dataclass
class FakeLease:
    tier: FakeTier
    replica_id: str
    revoked: bool = False
    held: tuple[int, ...] | None = None
    dead: bool = False
    released: bool = False

    def _accept(self, context: Context) -> tuple[int, ...] | None:
        """Catch up as a real actor does; None when it does not hold [0, start)."""
        self._require(not self.released, "called after its release")
        self._require(context.round > self.tier.last_round, "a round number was used twice")
        self.tier.last_round = context.round
        self._require(len(context.tokens) > 0, "no tokens were sent")
        self.tier.contexts.append(context)
        if context.start > len(self.held or ()):
            self._require(self.held is None, "the coordinator overestimates what a replica holds")
            return None
        full = (*(self.held or ())[: context.start], *(int(t) for t in context.tokens))
        num_committed = context.num_committed
        self._require(full[:num_committed] == TRUTH[:num_committed], "a committed token is wrong")
        self._require(num_committed <= len(full) == context.num_tokens, "lengths disagree")
        self.held = full
        return full

    def _require(self, condition: bool, violation: str) -> None:
        if not condition:
            self.tier.violations.append(violation)

    def propose(self, context: Context, shape: DraftShape) -> FakeHandle:
        if self.dead:
            raise ReplicaLost(self.replica_id)
        fault = self.tier.faults("propose")
        self.tier.asked.append(shape.num_tokens)
        future: asyncio.Future[Draft] = asyncio.get_running_loop().create_future()
        empty = np.empty(0, np.int32)
        if fault == "raise":
            raise RuntimeError("broken")
        if fault == "lost":
            self.dead = True
            raise ReplicaLost(self.replica_id)
        if fault == "forget":
            self.held = None
        if fault == "stall":
            return FakeHandle(future)
        if fault == "die":
            self.dead = True
            future.set_exception(ReplicaLost(self.replica_id))
            future.exception()
            return FakeHandle(future)
        if fault == "revoke":
            self.revoked = True
        if fault == "error":
            future.set_result(Draft(empty, error="out of pages"))
            return FakeHandle(future)
        prefix = self._accept(context)
        if prefix is None:
            future.set_result(Draft(empty, prefix_missing=True, error="prefix missing"))
            return FakeHandle(future)
        tokens: list[int] = []
        for _ in range(0 if fault == "empty" else shape.num_tokens):
            tokens.append(self.tier.model((*prefix, *tokens)))
        self.held = (*prefix, *tokens)  # one more than a real drafter holds: still only a cache
        future.set_result(Draft(
            np.array(tokens, np.int32), tier=self.tier.index, seconds=0.001, model_seconds=0.0005,
            num_cached_tokens=2,
        ))
        return FakeHandle(future)

    def enumerate(
        self, context: Context, draft: DraftHandle | Draft, verify_round: int, plan: AheadPlan
    ) -> FakeEnumeration:
        """Branches for each number of accepted tokens, with the model's own token or another guess."""
        return FakeEnumeration(asyncio.ensure_future(self._enumerate(context, draft, verify_round, plan)))

    async def _enumerate(
        self, context: Context, draft: DraftHandle | Draft, verify_round: int, plan: AheadPlan
    ) -> Enumeration:
        fault = self.tier.faults("enumerate")
        if fault == "raise":
            raise RuntimeError("broken")
        if fault == "die" or self.dead:
            self.dead = True
            raise ReplicaLost(self.replica_id)
        if fault == "stall":
            await asyncio.sleep(3600)
        if fault == "forget":
            self.held = None
        if fault == "error":
            return Enumeration(verify_round, error="out of pages")
        prefix = self._accept(context)
        if prefix is None:
            return Enumeration(verify_round, prefix_missing=True)
        given = draft if isinstance(draft, Draft) else await draft.fetch()
        await self.tier.pause()
        chain = [int(t) for t in given.tokens]
        branches: list[Branch] = []
        for node in range(-1, len(chain)):
            path = (*prefix, *chain[: node + 1])
            own = self.tier.model(path)
            guesses = [own, (own - 1) % VOCAB][: plan.num_guesses]
            for guess in [g for g in guesses if node + 1 == len(chain) or g != chain[node + 1]]:
                tokens: list[int] = []
                room = plan.max_total_tokens - len(path) - 2
                for _ in range(min(plan.shape.num_tokens, room)):
                    tokens.append(self.tier.model((*path, guess, *tokens)))
                if tokens:
                    branches.append(Branch(node, guess, Draft(np.array(tokens, np.int32), tier=self.tier.index)))
        return Enumeration(verify_round, tuple(branches[-plan.num_branches :]), self.tier.index, seconds=0.001)

    async def verify_ahead(self, round: int, verify_round: int, enumeration: EnumerationHandle) -> Verdict:
        assert isinstance(enumeration, FakeEnumeration)
        given = enumeration.outcome.result()
        fault = self.tier.faults("verify_ahead")
        if self.dead or fault == "die":
            self.dead = True
            raise ReplicaLost(self.replica_id)
        if fault == "hang":
            await asyncio.sleep(3600)
        missed = Verdict(np.empty(0, np.int32), 0, 0, Origin.PLAIN, tier=self.tier.index, missed=True)
        for _ in range(1000):
            if verify_round in self.tier.outcomes:
                break
            await asyncio.sleep(0)
        outcome = self.tier.outcomes.get(verify_round)
        branch = outcome and given.find(outcome.verdict.last_node, int(outcome.verdict.tokens[-1]))
        if fault == "miss" or outcome is None or branch is None:
            return missed
        if fault == "error":
            return Verdict(missed.tokens, 0, 0, Origin.PLAIN, error="NaN logits")
        await self.tier.compute()
        if self.released or self.tier.last_round > round:
            return missed  # closed, or another call came first
        self.tier.last_round = round
        self.held = (*outcome.prefix, *(int(t) for t in outcome.verdict.tokens))
        return self._decide(round, self.held, [branch.draft])

    def verify(self, context: Context, *drafts: DraftHandle | Draft, want_laws: bool) -> Awaitable[Verdict]:
        return self._verify(context, drafts)

    async def _verify(self, context: Context, drafts: tuple[DraftHandle | Draft, ...]) -> Verdict:
        if self.dead:
            raise ReplicaLost(self.replica_id)
        pieces: list[Draft] = []
        for draft in drafts:
            try:
                pieces.append(draft if isinstance(draft, Draft) else await draft.fetch())
            except ReplicaLost as error:
                raise DraftLost("producer died") from error
        fault = self.tier.faults("verify")
        nothing = Verdict(np.empty(0, np.int32), 0, 0, Origin.PLAIN, tier=self.tier.index)
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "die":
            self.dead = True
            raise ReplicaLost(self.replica_id)
        if fault == "raise":
            raise RuntimeError("broken")
        if fault == "forget":
            self.held = None
        if fault == "revoke":
            self.revoked = True
        if fault == "full":
            raise NoRoom(self.replica_id)
        if fault == "error":
            return Verdict(nothing.tokens, 0, 0, Origin.PLAIN, error="NaN logits")
        if fault == "reject":
            return Verdict(nothing.tokens, 0, 0, Origin.PLAIN, error="99 tokens exceed it", rejected=True)
        prefix = self._accept(context)
        if fault == "die_after":
            self.dead = True
            raise ReplicaLost(self.replica_id)
        if prefix is None:
            return Verdict(nothing.tokens, 0, 0, Origin.PLAIN, prefix_missing=True)
        await self.tier.compute()
        return self._decide(context.round, prefix, pieces)

    def _decide(self, round: int, prefix: tuple[int, ...], pieces: list[Draft]) -> Verdict:
        draft_ids = [int(t) for piece in pieces for t in piece.tokens]
        tiers = tuple(piece.tier for piece in pieces for _ in piece.tokens)
        tokens: list[int] = []
        while True:
            tokens.append(self.tier.model((*prefix, *tokens)))
            if len(tokens) > len(draft_ids) or tokens[-1] != draft_ids[len(tokens) - 1]:
                break
        full = len(tokens) == len(draft_ids) + 1
        last = Origin.RECOVERED if not full else Origin.BONUS if draft_ids else Origin.PLAIN
        errors = [piece.error for piece in pieces if piece.error]
        verdict = Verdict(
            np.array(tokens, np.int32), len(tokens) - 1, len(draft_ids), last, self.tier.index, tiers,
            draft_error=errors[0] if errors else None, draft_seconds=0.001, verify_seconds=0.002,
            draft_model_seconds=sum(piece.model_seconds for piece in pieces), verify_model_seconds=0.001,
            num_cached_tokens=1,
        )
        self.tier.outcomes[round] = Outcome(prefix, verdict)
        return verdict

    async def release(self, held: Ids | None = None) -> None:
        if not self.released:
            self.released = True
            if held is not None:
                self.tier.kept.append(tuple(held.tolist()))
            self.tier.open -= 1
        if self.tier.release_raises:
            raise RuntimeError("cannot release")


def check_clean(tiers: list[FakeTier]) -> None:
    """Every lease came back, and every call was one that a strict replica accepts."""
    assert [tier.open for tier in tiers] == [0] * len(tiers)
    assert [tier.violations for tier in tiers] == [[]] * len(tiers)


def make_tiers(*percents: int, faults: Faults = no_faults) -> list[FakeTier]:
    """Tiers below the target by how often they agree with it, then the target."""
    models = [agreeing(percent, salt) for salt, percent in enumerate(percents, 1)]
    return [FakeTier(i, model, faults) for i, model in enumerate([*models, target_model])]


def make_request(
    max_tokens: int = 20, lookahead: int = 4, stop_ids: frozenset[int] = frozenset(),
    deadline: float | None = None, sampling: SamplingParams | None = None,
) -> GenerationRequest:
    return GenerationRequest(
        "r", np.array(PROMPT, np.int32), sampling or SamplingParams(), max_tokens, stop_ids,
        lookahead, deadline,
    )


async def collect(
    request: GenerationRequest, tiers: list[FakeTier], windows: tuple[int, ...] = (),
    settings: CoordinatorSettings = FAST,
) -> tuple[list[TokenEvent], Finish]:
    events: list[TokenEvent] = []
    async for item in generate(request, Ladder(tiers, windows, settings)):
        if isinstance(item, Finish):
            assert all(tier.open == 0 for tier in tiers), "leases go back before the finish is yielded"
            return events, item
        events.append(item)
    raise AssertionError("the stream ended without a finish")


def run(
    request: GenerationRequest, tiers: list[FakeTier], windows: tuple[int, ...] = (),
    settings: CoordinatorSettings = FAST,
) -> tuple[list[int], Finish]:
    """Committed ids and the finish; checks that every lease came back."""
    try:
        events, finish = asyncio.run(collect(request, tiers, windows, settings))
    finally:
        check_clean(tiers)
    ids = [int(t) for event in events for t in event.token_ids]
    assert len(ids) == finish.usage.num_completion_tokens == finish.figures.committed
    return ids, finish


def script(**by_kind: dict[int, str]) -> Faults:
    """Faults by kind of call and its number, counted from 0: `script(verify={2: "die"})`."""
    counts: dict[str, int] = {}

    def faults(kind: str) -> str | None:
        count = counts.get(kind, 0)
        counts[kind] = count + 1
        return by_kind.get(kind, {}).get(count)

    return faults

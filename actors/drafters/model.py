"""Drafting with a language model: k batched decode steps on the draft tier's own engine."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np

from actors.answer import Answer
from actors.drafters.ahead import AheadJob
from actors.drafters.base import Drafter
from actors.drafters.chain import ChainJob
from actors.drafters.copies import Copies, with_copies
from actors.drafters.growth import Growth
from actors.drafters.tail import Tail
from actors.engine.backed import EngineBacked
from actors.engine.engine import Engine
from actors.engine.features import FeaturesMissing
from actors.engine.jobs import Job, PrefixMissing
from actors.engine.shallow import LayersUnrun
from actors.engine.tree import BadTree, check
from actors.messages import AheadPlan, Context, Draft, DraftShape, Enumeration, Ids, ReplicaInfo, ReplicaStats
from actors.sampling.noise import Purpose, stream
from actors.sampling.params import VerifyMode
from actors.sampling.rows import LogitRows


class DraftJob(ChainJob):
    """Catches up with the context, then draws up to k tokens one by one."""

    future: Future[Draft]

    def __init__(
        self, context: Context, num_tokens: int, tier: int, law_support: int, num_siblings: int = 0,
        copies: Copies | None = None,
    ) -> None:
        super().__init__(context, num_tokens, tier, law_support, _noise(context, tier), num_siblings, copies)
        self._has_learned = copies is None

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Draw the next token; before the first one, see which of the committed ones were copies."""
        if self._copies is not None and not self._has_learned:
            self._copies.learn(self.context, history_ids)
            self._has_learned = True
        return super().on_logits(logits, history_ids)

    def answer(self) -> None:
        """The tokens wanted."""
        self._tail.shown = True
        self.future.set_result(self.draft())

    def fail(self, error: Exception) -> None:
        """An empty draft that says why: the round goes on plain."""
        if not self.future.done():
            self.future.set_result(_no_draft(self, self._tier, error))


class TreeJob(Job):
    """Catches up with the context, then grows a tree after it."""

    future: Future[Draft]

    def __init__(
        self, context: Context, shape: DraftShape, depth: int, tier: int, law_support: int,
        copies: Copies | None = None,
    ) -> None:
        super().__init__(context, Answer())
        self._tier = tier
        self._copies = copies
        self._growth = Growth(context, shape, depth, tier, law_support, _noise(context, tier), self._answer, copies)

    def draft_ids(self) -> Ids:
        """Nothing is fed beyond the context."""
        return np.empty(0, np.int32)

    def recall(self, notes: object | None, num_common: int) -> object | None:
        """A tree leaves no tail: its branches hold what it ran."""
        return Tail(self.context.num_tokens, self.context.sampling)

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """The first level; the others run on branches."""
        if self._copies is not None:
            self._copies.learn(self.context, history_ids)
        self.spawned.extend(self._growth.feed(-1, logits, history_ids, self))
        return None

    def fail(self, error: Exception) -> None:
        """An empty draft that says why."""
        if not self.future.done():
            self.future.set_result(_no_draft(self, self._tier, error))

    def _answer(self, error: Exception | None) -> None:
        if not self._growth.has_tokens and error is not None:
            self.fail(error)
        elif not self.future.done():
            self.future.set_result(self._growth.draft(self))


def _noise(context: Context, tier: int) -> np.random.Generator | None:
    if context.sampling.mode in (VerifyMode.REJECTION, VerifyMode.BLOCK):
        return stream(context.sampling.entropy, Purpose.DRAFT, tier, context.round)
    return None


def _no_draft(job: Job, tier: int, error: Exception) -> Draft:
    if isinstance(error, FeaturesMissing):
        return Draft(np.empty(0, np.int32), tier=tier, seconds=job.seconds, features_missing=error.position)
    missing = isinstance(error, PrefixMissing)
    is_usual = missing or isinstance(error, LayersUnrun)
    return Draft(
        tokens=np.empty(0, np.int32), tier=tier, seconds=job.seconds, error=None if is_usual else f"{error}",
        prefix_missing=missing,
    )


class ModelDrafter(EngineBacked, Drafter):
    """Drafts with a language model, many sequences per step."""

    def __init__(self, engine: Engine, info: ReplicaInfo, law_support: int, copies: Copies | None = None) -> None:
        """`copies`: mixed into the model's laws."""
        super().__init__(engine, info)
        self._law_support = law_support
        self._copies = copies

    @property
    def wants_features(self) -> bool:
        """As its model does."""
        return self.engine.features_taken > 0

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """Queue a proposal; cut to what the draft model's own context still holds."""
        room = self._info.max_context_tokens - context.num_tokens + 1
        depth = max(1, min(shape.num_tokens, room))
        job: DraftJob | TreeJob
        if shape.grows:
            job = TreeJob(context, shape, depth, self._info.tier, self._law_support, self._copies)
        else:
            job = DraftJob(context, depth, self._info.tier, self._law_support, shape.siblings, self._copies)
        self.engine.submit(job)
        return job.future

    def enumerate(
        self, context: Context, draft: Draft, verify_round: int, plan: AheadPlan
    ) -> Future[Enumeration]:
        """Queue drafts for the outcomes; all branches run in the same passes."""
        if (wrong := self._why_not(draft)) is not None:
            future: Future[Enumeration] = Future()
            future.set_result(Enumeration(verify_round, tier=self._info.tier, error=wrong))
            return future
        job = AheadJob(
            context, draft, verify_round, plan, self._info.tier, self._law_support, self._info.max_context_tokens,
            one_by_one=self.wants_features, copies=self._copies,
        )
        self.engine.submit(job)
        return job.future

    def stats(self) -> ReplicaStats:
        """The engine's counters, and those of copies."""
        return with_copies(self.engine.stats(), self._copies)

    def _why_not(self, draft: Draft) -> str | None:
        """What is wrong with a draft that shall be run."""
        ids, parents = draft.tokens, draft.parents
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.engine.vocab_size:
            return f"a draft token lies outside the vocabulary of {self.engine.vocab_size}"
        if parents is None:
            return None
        if self.wants_features:
            return "this drafter does not draft ahead of trees"
        if len(parents) != len(ids):
            return f"{len(ids)} draft tokens came with {len(parents)} parents; send one each"
        try:
            check(parents)
        except BadTree as error:
            return f"{error}"
        return None

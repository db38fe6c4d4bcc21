"""Drafting k tokens in one pass of a plain draft model: after the context stand k - 1 mask tokens (PARD, 2504.18583).

Attention stays causal: a mask's row sees the context and the masks before it, so rows are those of training
(`actors.heads.parallel`), and the law of each place is known before any token is drawn. What the masks leave in KV
memory is provisional (`Job.num_whole`). It reads ids alone, so it may sit in a pool of its own.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from actors.answer import Answer
from actors.drafters import foreseen
from actors.drafters.base import Drafter
from actors.drafters.copies import Copies, with_copies
from actors.engine.backed import EngineBacked
from actors.engine.engine import Engine
from actors.engine.jobs import Job, PrefixMissing
from actors.heads.parallel import MaskTokens
from actors.messages import Context, Draft, DraftShape, Ids, ReplicaInfo, ReplicaStats
from actors.sampling.noise import Purpose, stream
from actors.sampling.params import VerifyMode
from actors.sampling.rows import LogitRows

_NO_IDS: Ids = np.empty(0, np.int32)


class ParallelJob(Job):
    """Catches up with the context, runs the masks in the same pass, and draws every token from its own row."""

    future: Future[Draft]

    def __init__(
        self, context: Context, shape: DraftShape, masks: Ids, tier: int, law_support: int,
        copies: Copies | None = None,
    ) -> None:
        """`masks`: one for each place after the first; no path of `shape` is longer than all places."""
        super().__init__(context, Answer())
        self._shape = shape
        self._masks = masks
        self._tier = tier
        self._law_support = law_support
        self._copies = copies
        self.num_whole = context.num_tokens

    def draft_ids(self) -> Ids:
        """The mask tokens."""
        return self._masks

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Draw all of the draft."""
        context, rng = self.context, None
        if context.sampling.mode in (VerifyMode.REJECTION, VerifyMode.BLOCK):
            rng = stream(context.sampling.entropy, Purpose.DRAFT, self._tier, context.round)
        if self._copies is not None:
            self._copies.learn(context, history_ids)
        draft = foreseen.draft(
            logits, history_ids.copy(), context, self._shape, self._tier, self._law_support, rng, self._copies
        )
        self.future.set_result(replace(
            draft, seconds=self.seconds, model_seconds=self.model_seconds, num_cached_tokens=self.num_cached_tokens,
            pass_rows=self.pass_rows, pass_seconds=self.pass_seconds,
        ))
        return None

    def fail(self, error: Exception) -> None:
        """An empty draft that says why: the round goes on plain."""
        if not self.future.done():
            missing = isinstance(error, PrefixMissing)
            self.future.set_result(Draft(
                _NO_IDS, tier=self._tier, seconds=self.seconds, error=None if missing else f"{error}",
                prefix_missing=missing,
            ))


class ParallelDrafter(EngineBacked, Drafter):
    """Drafts with mask tokens, many sequences per pass; chains, combs and trees alike take one pass."""

    def __init__(
        self, engine: Engine, info: ReplicaInfo, masks: MaskTokens, law_support: int, copies: Copies | None = None
    ) -> None:
        """`copies`: mixed into the model's laws."""
        super().__init__(engine, info)
        self._masks = masks
        self._law_support = law_support
        self._copies = copies

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """Queue a proposal; cut to what the model's own context still holds."""
        room = self._info.max_context_tokens - context.num_tokens + 1
        depth = max(1, min(shape.num_tokens, len(shape.widths) or shape.num_tokens, room))
        job = ParallelJob(
            context, replace(shape, num_tokens=depth), self._masks.ids(depth - 1), self._info.tier, self._law_support,
            self._copies,
        )
        self.engine.submit(job)
        return job.future

    def stats(self) -> ReplicaStats:
        """The engine's counters, and those of copies."""
        return with_copies(self.engine.stats(), self._copies)

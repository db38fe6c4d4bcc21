"""Drafting with a language model: k batched decode steps on the draft tier's own engine."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np

from actors.drafters.base import Drafter
from actors.engine.backed import EngineBacked
from actors.engine.engine import Engine
from actors.engine.jobs import Job, PrefixMissing
from actors.messages import Context, Draft, DraftShape, Ids, ReplicaInfo
from actors.sampling import laws as draft_laws
from actors.sampling.draw import draw
from actors.sampling.laws import SparseLaw
from actors.sampling.noise import Purpose, stream
from actors.sampling.params import VerifyMode
from actors.sampling.rows import LogitRows

_NO_IDS = np.empty(0, np.int32)


class DraftJob(Job):
    """Catches up with the context, then draws up to k tokens one by one."""

    future: Future[Draft]

    def __init__(self, context: Context, num_tokens: int, tier: int, law_support: int) -> None:
        super().__init__(context, Future())
        self._num_tokens = num_tokens
        self._tier = tier
        self._law_support = law_support
        self._tokens: list[int] = []
        self._laws: list[SparseLaw] = []
        self._rng: np.random.Generator | None = None
        if context.sampling.mode in (VerifyMode.REJECTION, VerifyMode.BLOCK):
            self._rng = stream(context.sampling.entropy, Purpose.DRAFT, tier, context.round)

    def draft_ids(self) -> Ids:
        """Nothing is fed beyond the context."""
        return _NO_IDS

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Draw the next token; it is fed unless it is the last one wanted."""
        context = self.context
        drawn = draw(
            logits=logits, index=0, params=context.sampling, history_ids=history_ids,
            num_prompt_tokens=context.num_prompt_tokens, rng=self._rng, law_support=self._law_support,
        )
        self._tokens.append(drawn.token)
        if drawn.law is not None:
            self._laws.append(drawn.law)
        if len(self._tokens) < self._num_tokens:
            return drawn.token
        self.future.set_result(
            Draft(
                tokens=np.array(self._tokens, np.int32),
                laws=draft_laws.build(self._laws) if self._laws else None, tier=self._tier, seconds=self.seconds,
                model_seconds=self.model_seconds, num_cached_tokens=self.num_cached_tokens,
                pass_rows=self.pass_rows, pass_seconds=self.pass_seconds,
            )
        )
        return None

    def fail(self, error: Exception) -> None:
        """An empty draft that says why: the round goes on plain."""
        if not self.future.done():
            missing = isinstance(error, PrefixMissing)
            self.future.set_result(
                Draft(
                    tokens=np.empty(0, np.int32), tier=self._tier, seconds=self.seconds,
                    error=None if missing else f"{error}", prefix_missing=missing,
                )
            )


class ModelDrafter(EngineBacked, Drafter):
    """Drafts with a language model, many sequences per step."""

    def __init__(self, engine: Engine, info: ReplicaInfo, law_support: int) -> None:
        super().__init__(engine, info)
        self._law_support = law_support

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """Queue a proposal; cut to what the draft model's own context still holds."""
        room = self._info.max_context_tokens - context.num_tokens + 1
        job = DraftJob(context, max(1, min(shape.num_tokens, room)), self._info.tier, self._law_support)
        self.engine.submit(job)
        return job.future

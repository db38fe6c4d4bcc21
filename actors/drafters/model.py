"""Drafting with a language model: k batched decode steps on the draft tier's own engine."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import torch

from actors.drafters.base import Drafter
from actors.engine.backed import EngineBacked
from actors.engine.engine import Engine
from actors.engine.jobs import Job, PrefixMissing
from actors.messages import Context, Draft, ReplicaInfo
from actors.sampling import laws as draft_laws
from actors.sampling.draw import draw
from actors.sampling.noise import Purpose, stream


class DraftJob(Job):
    """Catches up with the context, then draws up to k tokens one by one."""

    future: Future[Draft]

    def __init__(self, context: Context, num_tokens: int, tier: int, law_support: int, vocab_size: int) -> None:
        super().__init__(context, Future())
        self._num_tokens = num_tokens
        self._tier = tier
        self._law_support = law_support
        self._vocab_size = vocab_size
        self._tokens: list[int] = []
        self._laws: list[tuple[np.ndarray, np.ndarray]] = []
        self._rng: np.random.Generator | None = None

    def draft_ids(self) -> np.ndarray:
        """Nothing is fed beyond the context."""
        return np.empty(0, np.int32)

    def on_logits(self, logits: torch.Tensor) -> int | None:
        """Draw the next token from the last row; it is fed unless it is the last one wanted."""
        context, sampling = self.context, self.context.sampling
        if self._rng is None:
            self._rng = stream(sampling.entropy, Purpose.DRAFT, self._tier, context.round)
        history = np.append(self.history_ids, np.array(self._tokens, np.int32))
        drawn = draw(
            logits=logits[-1], params=sampling, history_ids=history, num_prompt_tokens=context.num_prompt_tokens,
            position=len(history), rng=self._rng, law_support=self._law_support,
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

    def propose(self, context: Context, num_tokens: int) -> Future[Draft]:
        """Queue a proposal; cut to what the draft model's own context still holds."""
        room = self._info.max_context_tokens - context.num_tokens + 1
        job = DraftJob(
            context, max(1, min(num_tokens, room)), self._info.tier, self._law_support, self.engine.vocab_size
        )
        self.engine.submit(job)
        return job.future

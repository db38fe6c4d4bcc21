"""A tier that verifies: the plain class behind a target or middle-tier actor."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np

from actors.engine.backed import EngineBacked
from actors.engine.engine import Engine
from actors.engine.jobs import Job, PrefixMissing, ReplicaFull
from actors.messages import Context, Draft, Ids, Laws, Origin, ReplicaInfo, Verdict
from actors.sampling import laws as draft_laws
from actors.sampling.rows import LogitRows, concat
from actors.sampling.validate import BadDraft
from actors.sampling.verify import verify


class VerifyJob(Job):
    """Feeds the context's tail and a draft, then decides (`actors.sampling.verify`)."""

    future: Future[Verdict]

    def __init__(
        self, context: Context, drafts: Sequence[Draft], tier: int, law_support: int, want_laws: bool
    ) -> None:
        super().__init__(context, Future())
        self._ids, self._laws, self._draft_tiers = concat_drafts(drafts)
        self._draft_seconds = sum(d.seconds for d in drafts)
        self._draft_model_seconds = sum(d.model_seconds for d in drafts)
        self._draft_error = next((d.error for d in drafts if d.error), None)
        self._tier = tier
        self._law_support = law_support
        self._want_laws = want_laws
        self._num_fed = len(self._ids)

    def draft_ids(self) -> Ids:
        """The drafted ids that are fed, [num_fed] int32."""
        return self._ids[: self._num_fed]

    def clip(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` draft tokens (a limit known before any was drawn)."""
        if len(self._ids) > num_tokens:
            self._ids = self._ids[:num_tokens]
            self._num_fed = min(self._num_fed, num_tokens)
            self._draft_tiers = self._draft_tiers[:num_tokens]
            if self._laws is not None:
                self._laws = draft_laws.cut(self._laws, 0, num_tokens)

    def stop_at_foreign_id(self, vocab_size: int) -> None:
        """An id outside the vocabulary cannot be fed, but it still has to be *rejected*, not dropped.

        Its p is 0, so verification always stops there, with the residual of that position: dropping it by
        looking at it would bias the text (papers: truncating on a token's value).
        """
        foreign = (self._ids < 0) | (self._ids >= vocab_size)
        if foreign.any():
            first = int(np.argmax(foreign))
            self.clip(first + 1)
            self._num_fed = first

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Verify, answer, done."""
        context = self.context
        if self._num_fed < len(self._ids):  # the row after a foreign id is never looked at
            logits = concat([logits, logits.part(self._num_fed, self._num_fed + 1)])
        decide = partial(
            verify, params=context.sampling, history_ids=history_ids,
            num_prompt_tokens=context.num_prompt_tokens, tier=self._tier, round=context.round,
            want_laws=self._want_laws, law_support=self._law_support,
        )
        try:
            verified = decide(draft_ids=self._ids, laws=self._laws, logits=logits)
        except BadDraft as error:  # the drafter's fault, not the request's: a plain step that says so
            self.clip(0)
            self._draft_error = f"{error}"
            verified = decide(draft_ids=self._ids, laws=None, logits=logits.part(0, 1))
        self.num_decided = context.num_tokens + verified.num_accepted
        self.future.set_result(
            Verdict(
                tokens=verified.tokens, num_accepted=verified.num_accepted, num_draft=len(self._ids),
                last=verified.last, tier=self._tier, draft_tiers=self._draft_tiers, laws=verified.laws,
                logprobs=verified.logprobs, draft_seconds=self._draft_seconds,
                verify_seconds=self.seconds, draft_error=self._draft_error,
                num_cached_tokens=self.num_cached_tokens, draft_model_seconds=self._draft_model_seconds,
                verify_model_seconds=self.model_seconds, pass_rows=self.pass_rows, pass_seconds=self.pass_seconds,
            )
        )
        return None

    def fail(self, error: Exception) -> None:
        """An error verdict; a missing prefix is told apart, for it only asks for a fuller call.

        A full replica is an exception: the request can go on, only not here and now.
        """
        if self.future.done():
            return
        if isinstance(error, ReplicaFull):
            self.future.set_exception(error)
        else:
            missing = isinstance(error, PrefixMissing)
            self.future.set_result(
                Verdict(
                    tokens=np.empty(0, np.int32), num_accepted=0, num_draft=len(self._ids), last=Origin.PLAIN,
                    tier=self._tier, prefix_missing=missing, error=None if missing else f"{error}",
                    verify_seconds=self.seconds, draft_error=self._draft_error,
                )
            )


def concat_drafts(drafts: Sequence[Draft]) -> tuple[Ids, Laws | None, tuple[int, ...]]:
    """One draft of several pieces: ids, laws, and the tier each id came from.

    When only some pieces carry laws (a deterministic drafter beside a sampled one), the others' laws are
    one-hot.
    """
    tiers = tuple(d.tier for d in drafts for _ in range(len(d.tokens)))
    ids = np.concatenate([d.tokens for d in drafts]) if drafts else np.empty(0, np.int32)
    laws = None
    if any(d.laws is not None for d in drafts):
        laws = draft_laws.concat([d.laws if d.laws is not None else _one_hot(d.tokens) for d in drafts])
    return ids.astype(np.int32), laws, tiers


def _one_hot(ids: Ids) -> Laws:
    return Laws(ids=ids, probs=np.ones(len(ids), np.float32), cu_len=np.arange(len(ids) + 1, dtype=np.int32))


class Verifier(EngineBacked):
    """Verifies drafts of many sequences in one engine."""

    def __init__(self, engine: Engine, info: ReplicaInfo, law_support: int) -> None:
        super().__init__(engine, info)
        self._law_support = law_support

    def verify(self, context: Context, drafts: Sequence[Draft], want_laws: bool = False) -> Future[Verdict]:
        """Queue one verify pass over the concatenated drafts; none means a plain step."""
        job = VerifyJob(context, drafts, self._info.tier, self._law_support, want_laws)
        job.clip(max(0, self._info.max_context_tokens - context.num_tokens))
        job.stop_at_foreign_id(self.engine.vocab_size)
        self.engine.submit(job)
        return job.future

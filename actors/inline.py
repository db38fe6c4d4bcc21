"""Verifying tiers with others inline: in the same process, reached without a hop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from actors.chains import Steps, run
from actors.drafters.base import Drafter
from actors.engine.jobs import PrefixMissing, StaleCall
from actors.messages import AheadPlan, Context, Draft, DraftShape, Enumeration, Ids, Origin, Verdict
from actors.sampling.params import VerifyMode
from actors.stacked import LOWER, UPPER, Stacked, UpperWorker
from actors.truths import Superseded, Telling
from actors.verifier import Verifier
from actors.wire.server import completed

_NO_IDS: Ids = np.empty(0, np.int32)
_TOGETHER = "a tier with others inline drafts together with them only"


class Verifies(UpperWorker, Protocol):
    """A verifying tier, alone or with others below it."""

    def verify(self, context: Context, drafts: Sequence[Draft], want_laws: bool = False) -> Future[Verdict]:
        """Queue one verify pass over the concatenated drafts; none means a plain step."""

    def expect(self, context: Context, want_laws: bool) -> Callable[[Sequence[Draft]], Future[Verdict]]:
        """`verify`, of drafts that are under way."""

    def verify_ahead(self, sequence_id: str, round: int, enumeration: Enumeration) -> Future[Verdict]:
        """Verify whichever branch fits the outcome of the pass of `enumeration.round`."""

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """Draft with the tier's own model."""

    def enumerate(self, context: Context, draft: Draft, verify_round: int, plan: AheadPlan) -> Future[Enumeration]:
        """Draft with the tier's own model for the outcomes of a pass of the tier above."""


class _DraftsForNobody:
    """The part of a tier with others inline: a draft is made by all of them, or not at all."""

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """An empty draft that says why."""
        return completed(Draft(_NO_IDS, error=_TOGETHER))

    def enumerate(self, context: Context, draft: Draft, verify_round: int, plan: AheadPlan) -> Future[Enumeration]:
        """No branches, and why."""
        return completed(Enumeration(verify_round, error=_TOGETHER))


class InlineVerifier(Stacked, _DraftsForNobody):
    """A verifier with a drafter inline: a call may ask for a draft and its verdict at once."""

    def __init__(self, drafter: Drafter, verifier: Verifier, idle_timeout_s: float = 120.0) -> None:
        super().__init__(drafter, verifier, idle_timeout_s)
        self._drafter = drafter
        self._verifier = verifier

    def verify(self, context: Context, drafts: Sequence[Draft], want_laws: bool = False) -> Future[Verdict]:
        """Verify `drafts` alone; the inline drafter is not asked."""
        return run(_unless_missing(lambda: self._verify(context, drafts, want_laws), self.info().tier))

    def expect(self, context: Context, want_laws: bool) -> Callable[[Sequence[Draft]], Future[Verdict]]:
        """`verify`, of drafts that are under way: there is nothing to be done before they are there."""
        return partial(self.verify, context, want_laws=want_laws)

    def verify_ahead(self, sequence_id: str, round: int, enumeration: Enumeration) -> Future[Verdict]:
        """Nothing rides ahead of a target that drafts by itself: the pass is an ordinary one."""
        return completed(Verdict(_NO_IDS, 0, 0, Origin.PLAIN, tier=self.info().tier, missed=True))

    def step(self, context: Context, shape: DraftShape, drafts: Sequence[Draft] = ()) -> Future[Verdict]:
        """Draft `shape` after the context and `drafts`, and verify all of it.

        A drafter that fails makes a pass over `drafts` alone, whose verdict names the `draft_error`. So does one that
        lacks features of the target, without an error: those that this pass brings are its with the next call.
        """
        return run(_unless_missing(lambda: self._step(context, shape, drafts), self.info().tier))

    def _verify(self, context: Context, drafts: Sequence[Draft], want_laws: bool) -> Steps[Verdict]:
        telling = self.truths.begin(context)
        return (yield from self._judged(telling, context.round, drafts, want_laws))

    def _step(self, context: Context, shape: DraftShape, drafts: Sequence[Draft]) -> Steps[Verdict]:
        telling = self.truths.begin(context)
        draft = yield from self._drafted(telling, context.round, shape, drafts)
        pieces = [*drafts, draft] if len(draft.tokens) or draft.error or not drafts else drafts
        if not self._drafter.wants_features:
            return (yield from self._judged(telling, context.round, pieces, False))
        start = telling.features_from(telling.ids, draft.features_missing, self._drafter.feature_window)
        verdict = yield from self._judged(telling, context.round, pieces, False, start)
        return telling.keep_features(telling.ids, verdict)

    def _judged(
        self, telling: Telling, round: int, drafts: Sequence[Draft], want_laws: bool, features_from: int = -1
    ) -> Steps[Verdict]:
        return (yield from telling.ask(
            UPPER, self.batons[UPPER], telling.ids, round,
            lambda told: self._verifier.verify(replace(told, features_from=features_from), drafts, want_laws),
        ))

    def _drafted(
        self, telling: Telling, round: int, shape: DraftShape, drafts: Sequence[Draft]
    ) -> Steps[Draft]:
        """A draft, or an empty one that says why. Raises `Superseded`."""
        if drafts:  # what comes after them cannot branch, for one draft is a chain or a tree; nor can it follow a tree
            shape = DraftShape(shape.num_tokens)
        if any(draft.parents is not None for draft in drafts):
            return Draft(_NO_IDS)
        ids = np.concatenate([telling.ids, *(draft.tokens for draft in drafts)])
        features = telling.take_features(telling.ids) if self._drafter.wants_features else None
        try:
            draft = yield from telling.ask(
                UPPER if self._drafter.runs_above else LOWER, self.batons[LOWER], ids, round,
                lambda told: self._drafter.propose(replace(told, features=features), shape),
            )
        except Superseded:
            raise
        except Exception as error:  # whatever happened, the pass goes on without it and says why
            return Draft(_NO_IDS, error=f"{type(error).__name__}: {error}")
        if draft.prefix_missing:
            return replace(draft, error="it misses a prefix although it was told all tokens")
        return draft


class RelayVerifier(Stacked, _DraftsForNobody):
    """A verifier whose drafts are first verified by another tier inline: what that decides is this one's draft."""

    def __init__(self, lower: Verifies, verifier: Verifier, idle_timeout_s: float = 120.0) -> None:
        super().__init__(lower, verifier, idle_timeout_s)
        self._lower = lower
        self._verifier = verifier

    def verify(self, context: Context, drafts: Sequence[Draft], want_laws: bool = False) -> Future[Verdict]:
        """Verify the drafts in both tiers, one after the other; without any, take a plain step of the upper one."""
        return run(_unless_missing(lambda: self._verify(context, drafts, want_laws), self.info().tier))

    def expect(self, context: Context, want_laws: bool) -> Callable[[Sequence[Draft]], Future[Verdict]]:
        """`verify`, of drafts that are under way: there is nothing to be done before they are there."""
        return partial(self.verify, context, want_laws=want_laws)

    def verify_ahead(self, sequence_id: str, round: int, enumeration: Enumeration) -> Future[Verdict]:
        """As `Verifier.verify_ahead`: a branch goes straight to the upper tier.

        It adds to that tier's sequence what is part of the truth, so what the tier is known to hold stays so.
        """
        return self._verifier.verify_ahead(sequence_id, round, enumeration)

    def _verify(self, context: Context, drafts: Sequence[Draft], want_laws: bool) -> Steps[Verdict]:
        telling = self.truths.begin(context)
        if any(len(draft.tokens) for draft in drafts):
            drafts = yield from self._sifted(telling, context, drafts)
        return (yield from telling.ask(
            UPPER, self.batons[UPPER], telling.ids, context.round,
            lambda told: self._verifier.verify(told, drafts, want_laws),
        ))

    def _sifted(self, telling: Telling, context: Context, drafts: Sequence[Draft]) -> Steps[Sequence[Draft]]:
        """The lower tier's verdict as a draft; where it fails, `drafts` as they came, with the error beside them."""
        sampled = context.sampling.mode in (VerifyMode.REJECTION, VerifyMode.BLOCK)
        try:
            verdict = yield from telling.ask(
                LOWER, self.batons[LOWER], telling.ids, context.round,
                lambda told: self._lower.verify(told, drafts, sampled),
            )
            if verdict.error is None and len(verdict.tokens):
                return [replace(verdict.as_draft(), error=verdict.draft_error)]
            why = verdict.error or "it misses a prefix although it was told all tokens"
        except Superseded:
            raise
        except Exception as error:  # the tiers around it can do without
            why = f"{type(error).__name__}: {error}"
        return [replace(drafts[0], error=drafts[0].error or why), *drafts[1:]]


def _unless_missing(steps: Callable[[], Steps[Verdict]], tier: int) -> Steps[Verdict]:
    """What a verifier answers instead of raising: a process that lacks the beginning asks for a fuller call."""
    try:
        return (yield from steps())
    except PrefixMissing:
        return Verdict(_NO_IDS, 0, 0, Origin.PLAIN, tier=tier, prefix_missing=True)
    except StaleCall as error:
        return Verdict(_NO_IDS, 0, 0, Origin.PLAIN, tier=tier, error=str(error))

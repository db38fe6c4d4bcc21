"""Drafting with a model that is itself drafted for, in one process: a lower tier drafts, this one's model verifies.

It is the ladder below one rung without its hops (Chen et al. 2024, "Cascade Speculative Drafting", sections 3-4, in
its sequential form). A verdict's tokens are distributed as the verifier's model and carry its laws, so what is
collected is a legal draft. When to stop is decided before the next token is drawn, and what was drawn is never
shortened.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np

from actors.chains import Steps, run
from actors.drafters.base import Drafter
from actors.engine.jobs import PrefixMissing, StaleCall
from actors.messages import Context, Draft, DraftShape, Ids, Verdict
from actors.sampling.params import VerifyMode
from actors.stacked import LOWER, UPPER, Stacked
from actors.truths import Superseded, Telling
from actors.verifier import Verifier, concat_drafts

log = logging.getLogger(__name__)

_NO_IDS: Ids = np.empty(0, np.int32)
_CALLS = 1024  # inner rounds of one round, at most: each needs a number of its own, for its noise


@dataclass(slots=True)
class _Collection:
    """What has been put together for one proposal."""

    ids: Ids  # the truth, then the tokens collected
    left: int  # tokens still wanted
    pieces: list[Draft] = field(default_factory=list)
    error: str | None = None
    verdict: Verdict | None = None  # the first
    last: Verdict | None = None
    model_seconds: float = 0.0

    def note(self, error: str | None) -> None:
        """Keep the first error."""
        self.error = self.error or error

    def add(self, verdict: Verdict) -> None:
        """Collect a verdict's tokens."""
        self.verdict = self.verdict or verdict
        self.last = verdict
        self.model_seconds += verdict.draft_model_seconds + verdict.verify_model_seconds
        self.pieces.append(verdict.as_draft())
        self.ids = np.concatenate([self.ids, verdict.tokens])
        self.left -= len(verdict.tokens)


class CascadeDrafter(Stacked, Drafter):
    """Proposes what `verifier` decides on drafts of `lower`, `window` of them at a time.

    When `lower` fails, the verifier goes on alone, and the draft has tokens beside its `error`. Safe to call from
    several threads; a proposal needs none of its own.
    """

    def __init__(self, lower: Drafter, verifier: Verifier, window: int, idle_timeout_s: float = 120.0) -> None:
        super().__init__(lower, verifier, idle_timeout_s)
        if window < 1:
            raise ValueError(f"window {window}: a lower tier must draft at least 1 token at a time")
        self._lower = lower
        self._verifier = verifier
        self._window = window
        self._tier = verifier.info().tier

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """A chain of `shape.num_tokens` tokens of this tier's model."""
        return run(self._propose(context, shape.num_tokens))

    def _propose(self, context: Context, num_tokens: int) -> Steps[Draft]:
        began_s = time.monotonic()
        try:
            telling = self.truths.begin(context)
            room = self._verifier.info().max_context_tokens - context.num_tokens + 1
            collection = _Collection(telling.ids, max(1, min(num_tokens, room)))
            yield from self._collect(telling, context, collection)
            draft = self._put_together(collection)
        except PrefixMissing:
            draft = Draft(_NO_IDS, tier=self._tier, prefix_missing=True)
        except StaleCall as error:
            draft = Draft(_NO_IDS, tier=self._tier, error=str(error))
        except Exception as error:  # a drafter never raises: the round goes on plain
            log.exception("drafting failed")
            draft = Draft(_NO_IDS, tier=self._tier, error=f"{type(error).__name__}: {error}")
        return replace(draft, seconds=time.monotonic() - began_s)

    def _collect(self, telling: Telling, context: Context, into: _Collection) -> Steps[None]:
        """Rounds of the two tiers until the window is full. Raises `Superseded`."""
        sampling = context.sampling
        want_laws = sampling.mode in (VerifyMode.REJECTION, VerifyMode.BLOCK)
        ends = frozenset(sampling.eos_ids)
        for number in range(_CALLS):
            if into.left < 1:
                return
            round = context.round * _CALLS + number
            below = yield from self._below(telling, round, into)
            try:
                verdict = yield from self._checked(telling, round, into.ids, below, want_laws)
            except Superseded:
                raise
            except Exception as error:  # as below: the tiers around this one can do without it
                into.note(f"tier {self._tier}: {error}")
                # What was drawn has to be judged whatever its tokens are, so the tier above gets it directly.
                into.pieces += [draft for draft in below if len(draft.tokens)]
                return
            into.note(verdict.draft_error)
            into.add(verdict)
            if not ends.isdisjoint(verdict.tokens.tolist()):
                return  # nothing after it can be committed

    def _below(self, telling: Telling, round: int, into: _Collection) -> Steps[list[Draft]]:
        """A draft of the lower tier, or none: it failed (already), or has no room. Raises `Superseded`."""
        num_tokens = min(self._window, into.left - 1, _room(self._lower, into.ids))  # the verifier adds a token
        if num_tokens < 1 or into.error is not None:
            return []
        features = telling.take_features(into.ids) if self._lower.wants_features else None
        try:
            draft = yield from telling.ask(
                UPPER if self._lower.runs_above else LOWER, self.batons[LOWER], into.ids, round,
                lambda told: self._lower.propose(replace(told, features=features), DraftShape(num_tokens)),
            )
        except Superseded:
            raise
        except Exception as error:  # a draft is a convenience
            draft = Draft(_NO_IDS, error=f"{type(error).__name__}: {error}")
        if draft.prefix_missing:
            draft = replace(draft, error="it misses a prefix although it was told all tokens")
        if draft.error is not None:
            log.warning("a lower tier failed, tier %d goes on alone: %s", self._tier, draft.error)
            into.note(f"the tier below tier {self._tier} failed: {draft.error}")
        return [draft]

    def _checked(
        self, telling: Telling, round: int, ids: Ids, drafts: Sequence[Draft], want_laws: bool
    ) -> Steps[Verdict]:
        """A good verdict. Raises `Superseded`, and `RuntimeError` for one that is none."""
        start = -1
        if self._lower.wants_features:
            missing = max((draft.features_missing for draft in drafts), default=-1)
            start = telling.features_from(ids, missing, self._lower.feature_window)
        verdict = yield from telling.ask(
            UPPER, self.batons[UPPER], ids, round,
            lambda told: self._verifier.verify(replace(told, features_from=start), drafts, want_laws),
        )
        verdict = telling.keep_features(ids, verdict)
        if verdict.error is not None or not len(verdict.tokens):
            raise RuntimeError(verdict.error or "it misses a prefix although it was told all tokens")
        return verdict

    def _put_together(self, collection: _Collection) -> Draft:
        pieces, first, last = collection.pieces, collection.verdict, collection.last
        ids, laws, _ = concat_drafts(pieces)
        return Draft(
            tokens=ids, laws=laws, tier=self._tier if first is not None or not pieces else pieces[0].tier,
            error=collection.error, model_seconds=collection.model_seconds,
            num_cached_tokens=first.num_cached_tokens if first is not None else 0,
            pass_rows=last.pass_rows if last is not None else 0,
            pass_seconds=last.pass_seconds if last is not None else 0.0,
        )


def _room(drafter: Drafter, ids: Ids) -> int:
    """Tokens that a drafter can still put after `ids`: one that has no model knows no limit."""
    info = getattr(drafter, "info", None)
    return 2**31 - 1 if info is None else int(info().max_context_tokens) - len(ids) + 1

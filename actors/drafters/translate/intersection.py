"""Token-level intersection: the draft model's law, restricted to the tokens that both vocabularies have.

Timor et al. 2502.05202, algorithm 4 ("TLI"). The draft model's logits become a row over the verifying tier's ids, -Inf
where it has no such token; from there on everything is as with a draft model of the same tokenizer: penalties, bias and
truncation act on the verifying tier's ids, coupled noise is that of its ids and positions, and q is the restricted law,
renormalised, that the token is really drawn from.
"""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import torch

from actors.drafters.model import DraftJob, ModelDrafter
from actors.drafters.translate.base import NO_IDS, Call, TranslatingDrafter
from actors.drafters.translate.spelling import Shared, Spelling, UnsuitableTokenizer
from actors.messages import Context, Draft, Ids, ReplicaInfo
from actors.sampling.rows import LogitRows
from actors.wire.server import completed

_FEWEST = 256  # shared tokens: a byte each, at least


class SharedJob(DraftJob):
    """Draws a chain of shared tokens: in the verifying tier's ids, run by those of the draft model."""

    def __init__(
        self, context: Context, text: Ids, shared: Shared, num_tokens: int, tier: int, law_support: int
    ) -> None:
        """`context` is in the draft model's ids, but for `num_prompt_tokens`; `text` is the same in the other ones."""
        super().__init__(context, num_tokens, tier, law_support)
        self._text = text
        self._shared = shared

    def draft_ids(self) -> Ids:
        """What is known of the draft already, in the draft model's ids."""
        return np.array([self._shared.lower_of[token] for token in super().draft_ids().tolist()], np.int32)

    def num_greedy(self) -> int:
        """One: what the draft model likes best may be none of the shared tokens, and has another id above."""
        return 1

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Draw the next token from the shared ones."""
        text = np.concatenate([self._text, np.array(self._tail.tokens, np.int32)])
        token = super().on_logits(restricted(logits, self._shared), text)
        return None if token is None else self._shared.lower_of[token]


def restricted(logits: LogitRows, shared: Shared) -> LogitRows:
    """The first of a draft model's rows over the verifying tier's ids. Raises `BadLogits`."""
    row = logits.row(0)
    wide = np.full((1, shared.upper_size), -np.inf, np.float32)
    here = shared.lower < len(row)
    wide[0, shared.upper[here]] = row[shared.lower[here]]
    return LogitRows(torch.from_numpy(wide))


class IntersectionDrafter(TranslatingDrafter):
    """Drafts with the tokens that both tokenizers have."""

    def __init__(
        self, inner: ModelDrafter, lower: Spelling, upper: Spelling, info: ReplicaInfo, law_support: int,
        idle_timeout_s: float = 120.0, fewest: int = _FEWEST,
    ) -> None:
        """Raises `UnsuitableTokenizer` when they have fewer than `fewest` tokens in common."""
        super().__init__(inner, lower, upper, info, idle_timeout_s)
        self._law_support = law_support
        if len(self._shared) < fewest:
            raise UnsuitableTokenizer(
                f"the two tokenizers share only {len(self._shared)} tokens, too few to draft with; set "
                "drafter.tokenizers: text"
            )

    def _ask(self, call: Call) -> Future[Draft]:
        if call.waiting:  # the text ends inside a character, which the draft model cannot see
            return completed(Draft(NO_IDS, tier=self._info.tier))
        num_left = self._inner.info().max_context_tokens - call.lower.num_tokens + 1
        context = Context(
            call.lower.sequence_id, call.lower.start, call.lower.tokens, call.context.num_prompt_tokens,
            call.lower.num_committed, call.lower.sampling, call.lower.round,
        )
        job = SharedJob(
            context, call.context.tokens, self._shared, max(1, min(call.shape.num_tokens, num_left)), self._info.tier,
            self._law_support,
        )
        self._inner.engine.submit(job)
        return job.future

    def _answer(self, call: Call, draft: Draft) -> Draft:
        return draft  # it is in the right ids already

"""Drawing from a reduced vocabulary without widening it: all ids of a call become places among the drafted ones.

What is drawn is the same. An id that is not drafted has no part in any law, so top-k, top-p and penalties see the same
numbers, and places ascend as ids do, so ties fall the same way. Coupled noise and grammars belong to ids, and copies
may be of any: there rows are widened.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from actors.heads.vocab import DraftVocabulary
from actors.messages import Branch, Context, Draft, Ids
from actors.sampling.params import SamplingParams, VerifyMode
from actors.sampling.rows import LogitRows


class Narrowed:
    """A call in terms of places, and the way back to ids."""

    def __init__(
        self, rows: LogitRows, ids: Ids, context: Context, vocabulary: DraftVocabulary, widens: bool = False
    ) -> None:
        """`rows`: logits of the drafted ids, [num_rows, num_ids]; `ids`: the whole text of `context`.

        `widens`: ids stay ids, whatever the mode.
        """
        self._ids: Ids | None = None
        self.rows, self.text, self.context = rows, ids, context
        if vocabulary.is_whole:
            return
        if widens or context.sampling.mode is VerifyMode.COUPLED or context.sampling.grammar is not None:
            values = np.stack([rows.row(i) for i in range(len(rows))])
            self.rows = LogitRows(vocabulary.widen(torch.from_numpy(values)), vocabulary.known_ids if widens else None)
            return
        self._ids = vocabulary.ids
        self.text = _places(ids, vocabulary.ids)
        self.context = replace(context, sampling=_narrow(context.sampling, vocabulary.ids))

    def places(self, draft: Draft) -> Draft:
        """A draft of ids, some of which may have no place (-1), as one of places. Its laws are left out."""
        if self._ids is None:
            return draft
        return replace(draft, tokens=_places(draft.tokens, self._ids), laws=None)

    def told(self, draft: Draft) -> Draft:
        """A draft of places as one of ids."""
        if self._ids is None:
            return draft
        laws = draft.laws
        if laws is not None:
            laws = replace(laws, ids=self._ids[laws.ids])
        return replace(draft, tokens=self._ids[draft.tokens], laws=laws)

    def branch(self, branch: Branch) -> Branch:
        """A branch of places as one of ids."""
        if self._ids is None:
            return branch
        return Branch(branch.node, int(self._ids[branch.token]), self.told(branch.draft))


def _narrow(params: SamplingParams, drafted: Ids) -> SamplingParams:
    """The same settings where they name ids."""
    if not params.logit_bias and not params.eos_ids:
        return params
    biased = _places(np.array([token for token, _ in params.logit_bias], np.int32), drafted).tolist()
    ends = _places(np.array(params.eos_ids, np.int32), drafted).tolist()
    bias = tuple((place, value) for place, (_, value) in zip(biased, params.logit_bias, strict=True) if place >= 0)
    # Where none of the ends is drafted, a place that is none stands for them: the rules go by whether there are any.
    return replace(params, logit_bias=bias, eos_ids=tuple(ends))


def _places(ids: Ids, drafted: Ids) -> Ids:
    """Where `ids` stand among the drafted ones; -1: nowhere."""
    places = np.searchsorted(drafted, ids)
    found = drafted[np.minimum(places, len(drafted) - 1)] == ids
    return np.where(found, places, -1).astype(np.int32)

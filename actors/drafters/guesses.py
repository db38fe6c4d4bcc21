"""A drafter's best guesses of one token, and what it makes of them: who else may come where a draft token stands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from actors.sampling.draw import coupled_best
from actors.sampling.laws import SparseLaw, truncate
from actors.sampling.noise import coupled_words_at, to_gumbel, to_uniforms
from actors.sampling.params import SamplingParams, VerifyMode
from actors.sampling.processors import IdSequence, LogWeights, adjusted, adjusts_logits, can_go_on, weigh
from actors.sampling.ranking import top_ids
from actors.sampling.rows import LogitRows

NUM_GUESSES = 8  # kept of each token


@dataclass(frozen=True, slots=True)
class Guesses:
    """The likeliest tokens of one position by the drafter's own lights, best first."""

    ids: tuple[int, ...]  # [at most NUM_GUESSES]
    probs: tuple[float, ...]

    def prob(self, token: int) -> float:
        """Probability of a token; one that is not among the best has at most what they leave over."""
        if token in self.ids:
            return self.probs[self.ids.index(token)]
        return max(0.0, min(1.0 - sum(self.probs), self.probs[-1])) if self.probs else 0.0


def guess(
    logits: LogitRows, index: int, params: SamplingParams, history_ids: IdSequence, num_prompt_tokens: int,
    law_support: int, law: SparseLaw | None = None,
) -> Guesses:
    """Guesses of the token after `history_ids`, from row `index` of `logits`; none where the grammar leaves none.

    Raises `BadLogits`.

    Greedy: by the softmax at temperature 1, whatever the request's is. Coupled: the noise is known, so tokens rank by
    log q + g, and the softmax of these scores says how safe their order is from a verifier that differs a little.
    Rejection: by the law itself (`law`, if it was drawn from already).
    """
    if not can_go_on(logits, index, params, history_ids, num_prompt_tokens):
        return Guesses((), ())
    if params.mode is VerifyMode.GREEDY:
        row = logits.row(index)
        if adjusts_logits(params, len(history_ids) - num_prompt_tokens):
            row = adjusted(row, params, history_ids, num_prompt_tokens)
        ids = top_ids(row, NUM_GUESSES)
        ids = ids[row[ids] > -np.inf]
        mass = float(np.exp(row - row[ids[0]]).sum(dtype=np.float64))
        return _guesses(ids.tolist(), np.exp((row[ids] - row[ids[0]]).astype(np.float64)) / mass)
    if params.mode is VerifyMode.COUPLED:
        return _coupled(weigh(logits, index, params, history_ids, num_prompt_tokens), params, len(history_ids))
    if law is None:
        law = truncate(weigh(logits, index, params, history_ids, num_prompt_tokens), law_support)
    best = top_ids(law[1], NUM_GUESSES)
    return _guesses(law[0][best].tolist(), law[1][best].astype(np.float64))


def _coupled(law: LogWeights, params: SamplingParams, position: int) -> Guesses:
    assert params.seed is not None
    ids = coupled_best(law, params, position, NUM_GUESSES)
    ascending = np.array(sorted(ids), np.int64)
    places = ascending if law.ids is None else np.searchsorted(law.ids, ascending)
    scores = law.logs[places] + to_gumbel(to_uniforms(coupled_words_at(params.seed, position, ascending)))
    weights = np.exp(scores - scores.max())
    of = dict(zip(ascending.tolist(), (weights / weights.sum()).tolist(), strict=True))
    return Guesses(tuple(ids), tuple(of[token] for token in ids))


def _guesses(ids: list[int], probs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Guesses:
    return Guesses(tuple(ids), tuple(probs.tolist()))

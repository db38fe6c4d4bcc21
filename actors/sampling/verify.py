"""Verification: which draft tokens the verifying tier keeps, and the one token it adds.

p is the verifying tier's law and q the law that the draft was drawn from. Pure functions: the outcome
depends on the arguments alone, so a retried call repeats itself. End of sequence and max_tokens are cut
by the coordinator, after the token that ends the text, never here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from actors.messages import Ids, Laws, Origin, TokenLogprobs
from actors.sampling import laws as law_tools
from actors.sampling.draw import coupled_argmax
from actors.sampling.laws import Floats, SparseLaw
from actors.sampling.noise import Purpose, stream
from actors.sampling.params import SamplingParams, VerifyMode
from actors.sampling.processors import IdSequence, LogWeights, greedy_argmax, weigh
from actors.sampling.ranking import Floats32, top_ids
from actors.sampling.rows import LogitRows
from actors.sampling.validate import BadDraft


@dataclass(frozen=True, slots=True)
class Verified:
    """Accepted draft tokens followed by exactly one token of the verifier."""

    tokens: Ids  # [num_accepted + 1]
    num_accepted: int
    last: Origin  # RECOVERED, BONUS or PLAIN
    laws: Laws | None  # this tier's law of each of `tokens`, when wanted and in a rejection mode
    logprobs: tuple[TokenLogprobs, ...] | None


def verify(
    draft_ids: Ids,  # [k], possibly empty
    laws: Laws | None,
    logits: LogitRows,  # k + 1 rows; row i follows the first i draft tokens
    params: SamplingParams,
    history_ids: IdSequence,
    num_prompt_tokens: int,
    tier: int,
    round: int,
    want_laws: bool,
    law_support: int,
) -> Verified:
    """Verify a draft after `history_ids` (prompt and all tokens before the draft).

    Rows are processed only as far as they are needed, so a NaN behind the first rejection is never seen.
    `laws` None means a deterministic draft: q is one-hot. With `want_laws` (a middle tier in a rejection
    mode) p *is* its `law_support` likeliest tokens, renormalised, and each token's p is returned as the
    q of the next tier. Raises `BadLogits`, `BadDraft` (laws that cannot be those of the draft), and
    `ValueError` for wrong shapes.
    """
    rows = _Rows(draft_ids, laws, logits, params, history_ids, num_prompt_tokens,
                 law_support if want_laws else None)
    match params.mode:
        case VerifyMode.GREEDY:
            tokens = _greedy(rows)
        case VerifyMode.COUPLED:
            tokens = _coupled(rows)
        case mode:
            acceptance = stream(params.entropy, Purpose.ACCEPTANCE, tier, round)
            residual = float(stream(params.entropy, Purpose.RESIDUAL, tier, round).random())
            # A one-hot q gains nothing from block verification (both accept i tokens with probability
            # prod p), and token-wise stops earlier.
            rule = _block if mode is VerifyMode.BLOCK and laws is not None else _token_wise
            tokens = rule(rows, acceptance.random(rows.num_draft), residual)
    num_accepted = len(tokens) - 1
    last = Origin.BONUS if num_accepted == rows.num_draft else Origin.RECOVERED
    if rows.num_draft == 0:
        last = Origin.PLAIN
    logprobs = None
    if params.num_logprobs is not None:
        count = params.num_logprobs
        logprobs = tuple(_logprobs(logits.row(i), token, count) for i, token in enumerate(tokens))
    return Verified(np.array(tokens, np.int32), num_accepted, last, rows.emitted_laws(len(tokens)), logprobs)


class _Rows:
    """The verifier's laws and the draft's, position by position, computed on demand."""

    def __init__(
        self, draft_ids: Ids, laws: Laws | None, logits: LogitRows, params: SamplingParams,
        history_ids: IdSequence, num_prompt_tokens: int, truncate_to: int | None,
    ) -> None:
        self.num_draft = len(draft_ids)
        if len(logits) != self.num_draft + 1:
            raise ValueError(f"{self.num_draft} draft tokens need {self.num_draft + 1} rows of logits, "
                             f"got {len(logits)}")
        if laws is not None and laws.num_tokens != self.num_draft:
            raise BadDraft(f"{self.num_draft} draft tokens came with {laws.num_tokens} laws; send one each")
        self.draft: list[int] = draft_ids.tolist()
        self.logits = logits
        self.params = params
        self.size = logits.vocab_size
        self.num_prompt_tokens = num_prompt_tokens
        self.start = len(history_ids)
        self._laws = laws
        self._text = np.concatenate([np.asarray(history_ids, np.int32), np.asarray(draft_ids, np.int32)])
        self._truncate_to = truncate_to
        self._own: list[SparseLaw] = []

    def history(self, i: int) -> Ids:
        """All ids before row i."""
        return self._text[: self.start + i]

    def law(self, i: int) -> LogWeights:
        """The law of row i."""
        return weigh(self.logits, i, self.params, self.history(i), self.num_prompt_tokens)

    def best(self, i: int) -> int:
        """Argmax of row i after bias, penalties and min_tokens."""
        return greedy_argmax(self.logits, i, self.params, self.history(i), self.num_prompt_tokens)

    def p(self, i: int) -> Floats:
        """p of row i, [V]; called once per row, in order. Truncated when this tier's laws travel."""
        law = self.law(i)
        if self._truncate_to is None:
            return law.scatter(law.probabilities())
        ids, probs = law_tools.truncate(law, self._truncate_to)
        self._own.append((ids, probs))
        dense = np.zeros(self.size)
        dense[ids] = law_tools.normalised(probs)
        return dense

    def q(self, i: int) -> tuple[Ids, Floats, float]:
        """Support, probabilities and q(x_i) of draft token i; the support may exceed the vocabulary."""
        token = self.draft[i]
        if self._laws is None:
            return np.array([token], np.int32), np.ones(1), 1.0
        ids, probs = self._laws.at(i)
        if not (len(probs) and 0.0 < float(probs.sum()) < np.inf and float(probs.min()) >= 0.0):
            raise BadDraft(f"the law of draft token {i} is not a distribution; send float32 probabilities")
        q = law_tools.normalised(probs)
        q_token = float(q[ids == token].sum())
        if q_token <= 0.0:
            raise BadDraft(f"draft token {i} lies outside the law it came with; send the law it was drawn by")
        return ids, q, q_token

    def p_token(self, p: Floats, i: int) -> float:
        """p(x_i); 0 for ids outside the vocabulary, which are therefore never accepted."""
        token = self.draft[i]
        return float(p[token]) if 0 <= token < self.size else 0.0

    def emitted_laws(self, num_tokens: int) -> Laws | None:
        """Laws of the emitted tokens, in the rejection modes of a tier that was asked for them.

        An emitted token, accepted or recovered, has law p_i given the tokens before it and given that it
        was emitted. For a lossless rule this follows from losslessness: continue the verdict with fresh
        draws from p; the whole is p in law and the continuation is p by construction, so the emitted
        part must be too. Variable length is no obstacle for the next tier, token-wise or block: in
        both, P(tau >= i | x_1..x_i) = pi_i holds whether or not the draft goes on after x_i, because
        whether it goes on is decided before x_{i+1} is drawn.
        """
        if self._truncate_to is None or not self._own:
            return None
        return law_tools.build(self._own[:num_tokens])


def _greedy(rows: _Rows) -> list[int]:
    """Accept while the draft equals the argmax; ties go to the smallest id."""
    return _exact_match(rows, rows.best)


def _coupled(rows: _Rows) -> list[int]:
    """Accept while the draft equals `argmax(log p + g)`: the text never depends on the draft."""
    return _exact_match(rows, lambda i: coupled_argmax(rows.law(i), rows.params, rows.start + i))


def _exact_match(rows: _Rows, choose: Callable[[int], int]) -> list[int]:
    """The verifier's own choices up to and including the first that differs from the draft."""
    tokens: list[int] = []
    for i in range(rows.num_draft + 1):
        tokens.append(choose(i))
        if i < rows.num_draft and tokens[i] != rows.draft[i]:
            break
    return tokens


def _token_wise(rows: _Rows, uniforms: Floats, residual: float) -> list[int]:
    """Rejection sampling, token by token (Leviathan 2211.17192, algorithm 1; Chen 2302.01318)."""
    for i in range(rows.num_draft):
        p = rows.p(i)
        ids, q, q_token = rows.q(i)
        if not uniforms[i] * q_token < rows.p_token(p, i):
            return [*rows.draft[:i], _draw_residual(p, 1.0, ids, q, residual)]
    return [*rows.draft, law_tools.sample(rows.p(rows.num_draft), residual)]


def _block(rows: _Rows, uniforms: Floats, residual: float) -> list[int]:
    """Block verification (Sun et al. 2403.10444, algorithm 2): the *largest* i that passes is kept.

    pi_i = min(pi_{i-1} p(x_i) / q(x_i), 1); h_i = Z_i / (Z_i + 1 - pi_i) with Z_i the mass of
    max(pi_i p_{i+1} - q_{i+1}, 0), and h_k = pi_k. A failure at i does not end the search, but pi_i = 0
    does: it stays 0, and so does every later h.
    """
    num_draft = rows.num_draft
    p, pi, kept = rows.p(0), 1.0, 0
    if num_draft == 0:
        return [law_tools.sample(p, residual)]
    ids, q, q_token = rows.q(0)
    left = (p, pi, ids, q)  # of the residual max(pi p - q, 0) to draw from when `kept` tokens are kept
    for i in range(num_draft):
        pi = min(pi * rows.p_token(p, i) / q_token, 1.0)
        if pi == 0.0:
            break
        p = rows.p(i + 1)
        threshold = pi
        if i + 1 < num_draft:
            ids, q, q_token = rows.q(i + 1)
            mass = _residual_mass(p, pi, ids, q)
            # 0 / 0: pi = 1 and p = q, where the next token is always kept; 1 agrees with the limit.
            threshold = mass / (mass + 1.0 - pi) if mass + 1.0 - pi > 0.0 else 1.0
        if uniforms[i] < threshold:
            kept, left = i + 1, (p, pi, ids, q)
    if kept == num_draft:
        return [*rows.draft, law_tools.sample(p, residual)]
    return [*rows.draft[:kept], _draw_residual(*left, residual)]


def _residual_mass(p: Floats, pi: float, ids: Ids, q: Floats) -> float:
    """Sum of max(pi p - q, 0) over the vocabulary, touching only the support of q twice."""
    inside = (ids >= 0) & (ids < len(p))
    p_support = p[ids[inside]]
    outside = max(1.0 - float(p_support.sum()), 0.0)
    return pi * outside + float(np.maximum(pi * p_support - q[inside], 0.0).sum())


def _draw_residual(p: Floats, pi: float, ids: Ids, q: Floats, uniform: float) -> int:
    """Draw from max(pi p - q, 0), normalised (not soft-maxed)."""
    inside = (ids >= 0) & (ids < len(p))
    support = ids[inside]
    weights = pi * p
    weights[support] = np.maximum(weights[support] - q[inside], 0.0)
    # No mass left means p = q up to rounding, so that a rejection had probability ~1e-16: p is the law.
    return law_tools.sample(weights if weights.any() else p, uniform)


def _logprobs(row: Floats32, token: int, count: int) -> TokenLogprobs:
    """Log-probabilities under the softmax of an unmodified row [V]."""
    top = row.max()
    log_mass = float(top) + math.log(float(np.exp(row - top).sum(dtype=np.float64)))
    ids = top_ids(row, count)
    return TokenLogprobs(
        logprob=float(row[token]) - log_mass,
        top_ids=ids.astype(np.int32),
        top_logprobs=(row[ids].astype(np.float64) - log_mass).astype(np.float32),
    )

"""Verification: which draft tokens the verifying tier keeps, and the one token it adds.

p is the verifying tier's law and q the law that the draft was drawn from. Pure functions: the outcome
depends on the arguments alone, so a retried call repeats itself. End of sequence and max_tokens are cut
by the coordinator, after the token that ends the text, never here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from actors.messages import Ids, Laws, Origin, TokenLogprobs
from actors.sampling import laws as law_tools
from actors.sampling.laws import Floats
from actors.sampling.noise import Purpose, stream
from actors.sampling.params import SamplingParams, VerifyMode
from actors.sampling.positions import Rows
from actors.sampling.processors import IdSequence, adjusts_logits
from actors.sampling.ranking import Floats32, top_ids
from actors.sampling.rows import LogitRows


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
    if params.mode is VerifyMode.GREEDY and laws is None and not adjusts_logits(
        params, len(history_ids) - num_prompt_tokens
    ):
        return _likeliest(draft_ids, logits, params.num_logprobs)
    rows = Rows(draft_ids, laws, logits, params, history_ids, num_prompt_tokens, law_support if want_laws else None)
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
    logprobs = token_logprobs(logits, range(len(tokens)), tokens, params.num_logprobs)
    return _verified(tokens, rows.num_draft, rows.emitted_laws(len(tokens)), logprobs)


def _likeliest(draft_ids: Ids, logits: LogitRows, num_logprobs: int | None) -> Verified:
    """Greedy on the rows as they are, which depend on no text: the same as `_greedy`, by far fewer steps."""
    draft: list[int] = draft_ids.tolist()
    if len(logits) != len(draft) + 1:
        raise ValueError(f"{len(draft)} draft tokens need {len(draft) + 1} rows of logits, got {len(logits)}")
    tokens = [logits.best(0)]
    while len(tokens) <= len(draft) and tokens[-1] == draft[len(tokens) - 1]:
        tokens.append(logits.best(len(tokens)))
    return _verified(tokens, len(draft), None, token_logprobs(logits, range(len(tokens)), tokens, num_logprobs))


def _verified(
    tokens: list[int], num_draft: int, laws: Laws | None, logprobs: tuple[TokenLogprobs, ...] | None
) -> Verified:
    num_accepted = len(tokens) - 1
    last = Origin.BONUS if num_accepted == num_draft else Origin.RECOVERED
    return Verified(
        np.array(tokens, np.int32), num_accepted, last if num_draft else Origin.PLAIN, laws, logprobs
    )


def _greedy(rows: Rows) -> list[int]:
    """Accept while the draft equals the argmax; ties go to the smallest id."""
    return _exact_match(rows, rows.best)


def _coupled(rows: Rows) -> list[int]:
    """Accept while the draft equals `argmax(log p + g)`: the text never depends on the draft."""
    return _exact_match(rows, rows.coupled)


def _exact_match(rows: Rows, choose: Callable[[int], int]) -> list[int]:
    """The verifier's own choices up to and including the first that differs from the draft."""
    tokens: list[int] = []
    for i in range(rows.num_draft + 1):
        tokens.append(choose(i))
        if i < rows.num_draft and tokens[i] != rows.draft[i]:
            break
    return tokens


def _token_wise(rows: Rows, uniforms: Floats, residual: float) -> list[int]:
    """Rejection sampling, token by token (Leviathan 2211.17192, algorithm 1; Chen 2302.01318)."""
    for i in range(rows.num_draft):
        p = rows.p(i)
        ids, q, q_token = rows.q(i)
        if not uniforms[i] * q_token < rows.p_token(p, i):
            return [*rows.draft[:i], _draw_residual(p, 1.0, ids, q, residual)]
    return [*rows.draft, law_tools.sample(rows.p(rows.num_draft), residual)]


def _block(rows: Rows, uniforms: Floats, residual: float) -> list[int]:
    """Block verification (Sun et al. 2403.10444, algorithm 2): the *largest* i that passes is kept."""
    steps = block_steps(rows)
    kept, left = 0, next(steps)
    for i, step in enumerate(steps):
        if uniforms[i] < step.threshold:
            kept, left = i + 1, step
    if kept == rows.num_draft:
        return [*rows.draft, law_tools.sample(left.p, residual)]
    return [*rows.draft[:kept], _draw_residual(left.p, left.pi, left.ids, left.q, residual)]


@dataclass(frozen=True, slots=True)
class BlockStep:
    """Block verification after the first i draft tokens."""

    threshold: float  # h_i: the probability with which i passes
    p: Floats  # [V] law of the next token
    pi: float
    ids: Ids  # support of the next draft token's law, and
    q: Floats  # its probabilities; meaningless after the last draft token


def block_steps(rows: Rows) -> Iterator[BlockStep]:
    """Steps i = 0 (always passes), 1, ..., k, each computed when it is asked for.

    pi_i = min(pi_{i-1} p(x_i) / q(x_i), 1); h_i = Z_i / (Z_i + 1 - pi_i) with Z_i the mass of
    max(pi_i p_{i+1} - q_{i+1}, 0), and h_k = pi_k. A failure at i does not end the search, but pi_i = 0
    does: it stays 0, and so does every later h.
    """
    num_draft = rows.num_draft
    p, pi = rows.p(0), 1.0
    ids, q, q_token = rows.q(0) if num_draft else (np.empty(0, np.int32), np.empty(0), 0.0)
    yield BlockStep(1.0, p, pi, ids, q)
    for i in range(num_draft):
        pi = min(pi * rows.p_token(p, i) / q_token, 1.0)
        if pi == 0.0:
            return
        p = rows.p(i + 1)
        threshold = pi
        if i + 1 < num_draft:
            ids, q, q_token = rows.q(i + 1)
            mass = _residual_mass(p, pi, ids, q)
            # 0 / 0: pi = 1 and p = q, where the next token is always kept; 1 agrees with the limit.
            threshold = mass / (mass + 1.0 - pi) if mass + 1.0 - pi > 0.0 else 1.0
        yield BlockStep(threshold, p, pi, ids, q)


def _residual_mass(p: Floats, pi: float, ids: Ids, q: Floats) -> float:
    """Sum of max(pi p - q, 0) over the vocabulary, touching only the support of q twice."""
    inside = (ids >= 0) & (ids < len(p))
    p_support = p[ids[inside]]
    outside = max(1.0 - float(p_support.sum()), 0.0)
    return pi * outside + float(np.maximum(pi * p_support - q[inside], 0.0).sum())


def _draw_residual(p: Floats, pi: float, ids: Ids, q: Floats, uniform: float) -> int:
    """Draw from max(pi p - q, 0), normalised (not soft-maxed)."""
    return law_tools.sample(residual_weights(p, pi, ids, q), uniform)


def residual_weights(p: Floats, pi: float, ids: Ids, q: Floats) -> Floats:
    """max(pi p - q, 0) for p [V] and q given on its support `ids`, not normalised and never all zero. [V]"""
    inside = (ids >= 0) & (ids < len(p))
    support = ids[inside]
    weights = pi * p
    weights[support] = np.maximum(weights[support] - q[inside], 0.0)
    # No mass left means p = q up to rounding, so that a rejection had probability ~1e-16: p is the law.
    return weights if weights.any() else p


def token_logprobs(
    logits: LogitRows, rows: Iterable[int], tokens: Sequence[int], count: int | None
) -> tuple[TokenLogprobs, ...] | None:
    """Log-probabilities of `tokens`, each under its own one of `rows`, with the `count` best; None if `count` is."""
    if count is None:
        return None
    return tuple(_logprobs(logits.row(i), token, count) for i, token in zip(rows, tokens, strict=True))


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

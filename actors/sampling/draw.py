"""Drawing one draft token, by the rule that the request's verification mode expects."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from actors.sampling.laws import SparseLaw, normalised, sample, truncate
from actors.sampling.noise import coupled_uniforms, to_gumbel
from actors.sampling.params import SamplingParams, VerifyMode
from actors.sampling.processors import IdSequence, greedy_argmax, process

_NEAR_NATS = 6.0  # ids this close to the best get their noise at once; any value gives the same result


@dataclass(frozen=True, slots=True)
class Drawn:
    """One drafted token and, in the rejection modes, the law it was drawn from."""

    token: int
    law: SparseLaw | None


def draw(
    logits: torch.Tensor,  # [V] float32
    params: SamplingParams,
    history_ids: IdSequence,
    num_prompt_tokens: int,
    position: int,
    rng: np.random.Generator | None,
    law_support: int,
) -> Drawn:
    """Draw the token at absolute `position` after `history_ids` (drafted prefix included).

    Greedy takes the argmax, coupled `argmax(log q + g)` with g = f(seed, position, id). The rejection
    modes draw from the `law_support` likeliest tokens, renormalised (0: from the whole law), using the
    float32 probabilities returned as `law` and nothing else, so that what the verifier is told is what
    happened. `rng` is the request's `Purpose.DRAFT` stream; only the rejection modes need it. Raises
    `BadLogits`.
    """
    mode = params.mode
    if mode is VerifyMode.GREEDY:
        return Drawn(greedy_argmax(logits, params, history_ids, num_prompt_tokens), None)
    log_probs = process(logits, params, history_ids, num_prompt_tokens)
    if mode is VerifyMode.COUPLED:
        return Drawn(coupled_argmax(log_probs, params, position), None)
    if rng is None:
        raise ValueError("a draft for rejection sampling needs noise: pass stream(..., Purpose.DRAFT, ...)")
    ids, probs = truncate(log_probs, law_support)
    return Drawn(int(ids[sample(normalised(probs), rng.random())]), (ids, probs))


def coupled_argmax(log_probs: torch.Tensor, params: SamplingParams, position: int) -> int:
    """The id that maximises `log prob + g` [V]: the same rule for p and for q.

    A Gumbel-max sample of the law; drafter and target that share g agree with a probability of at least
    (1 - TV) / (1 + TV) (Daliri, Musco, Suresh 2408.07978). Computed in float64: float32 noise would tie.

    Two logarithms per id would cost more than the rest of a row together. An id much less likely than
    the best can only win with noise above a bound, which its uniform tells without a logarithm.
    """
    if params.seed is None:
        raise ValueError("coupled sampling needs a seed: set SamplingParams.seed")
    row = log_probs.cpu().numpy()
    uniforms = coupled_uniforms(params.seed, position, len(row))
    floor = float(row.max()) - _NEAR_NATS
    near = row >= floor
    best = float((row[near].astype(np.float64) + to_gumbel(uniforms[near])).max())
    # The slack covers rounding of the two exponentials; too many candidates are harmless.
    bound = math.exp(-math.exp(min(floor - best, 700.0))) - 2.0**-48
    candidates = np.flatnonzero(near | ((uniforms >= bound) & (row > -np.inf)))
    scores = row[candidates].astype(np.float64) + to_gumbel(uniforms[candidates])
    return int(candidates[scores.argmax()])

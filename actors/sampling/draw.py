"""Drawing one draft token, by the rule that the request's verification mode expects."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from actors.sampling.laws import SparseLaw, normalised, sample, truncate
from actors.sampling.noise import Floats, coupled_words, coupled_words_at, least_word, to_gumbel, to_uniforms
from actors.sampling.params import SamplingParams, VerifyMode
from actors.sampling.processors import IdSequence, LogWeights, greedy_argmax, weigh
from actors.sampling.ranking import Indices, contenders, top_ids
from actors.sampling.rows import LogitRows

_FEW = 4  # times as many may be near
_NEAR = 64  # so many of the likeliest get their noise at once; any number gives the same result


@dataclass(frozen=True, slots=True)
class Drawn:
    """One drafted token and, in the rejection modes, the law it was drawn from."""

    token: int
    law: SparseLaw | None


def draw(
    logits: LogitRows,
    index: int,
    params: SamplingParams,
    history_ids: IdSequence,
    num_prompt_tokens: int,
    rng: np.random.Generator | None,
    law_support: int,
) -> Drawn:
    """Draw the token after `history_ids` (drafted prefix included) from row `index` of `logits`.

    Greedy takes the argmax, coupled `argmax(log q + g)` with g = f(seed, position, id). The rejection
    modes draw from the `law_support` likeliest tokens, renormalised (0: from the whole law), using the
    float32 probabilities returned as `law` and nothing else, so that what the verifier is told is what
    happened. `rng` is the request's `Purpose.DRAFT` stream; only the rejection modes need it. Raises
    `BadLogits`.
    """
    mode = params.mode
    if mode is VerifyMode.GREEDY:
        return Drawn(greedy_argmax(logits, index, params, history_ids, num_prompt_tokens), None)
    law = weigh(logits, index, params, history_ids, num_prompt_tokens)
    if mode is VerifyMode.COUPLED:
        return Drawn(coupled_argmax(law, params, len(history_ids)), None)
    if rng is None:
        raise ValueError("a draft for rejection sampling needs noise: pass stream(..., Purpose.DRAFT, ...)")
    ids, probs = truncate(law, law_support)
    return Drawn(int(ids[sample(normalised(probs), rng.random())]), (ids, probs))


def coupled_argmax(law: LogWeights, params: SamplingParams, position: int) -> int:
    """The id that maximises `log weight + g` at absolute `position`: the same rule for p and for q.

    A Gumbel-max sample of the law; drafter and target that share g agree with a probability of at least
    (1 - TV) / (1 + TV) (Daliri, Musco, Suresh 2408.07978). Computed in float64: float32 noise would tie.
    """
    return coupled_best(law, params, position, 1)[0]


def coupled_best(law: LogWeights, params: SamplingParams, position: int, count: int) -> list[int]:
    """The `count` ids with the largest `log weight + g`, best first, ties by id; fewer if the law has fewer.

    Two logarithms per id would cost more than the rest of a row together. An id less likely than the
    `_NEAR` best can only win with noise above a bound, which its random word tells without a logarithm.
    """
    if params.seed is None:
        raise ValueError("coupled sampling needs a seed: set SamplingParams.seed")
    logs, ids = law.logs, law.ids
    if ids is not None and len(ids) == 1:
        return [int(ids[0])]
    if ids is None:
        words = coupled_words(params.seed, position, law.size)
    else:
        words = coupled_words_at(params.seed, position, ids)

    def scores(places: Indices) -> Floats:
        values: Floats = logs[places].astype(np.float64) + to_gumbel(to_uniforms(words[places]))
        return values

    def best(places: Indices) -> list[int]:
        values = scores(places)
        order = [int(values.argmax())] if count == 1 else np.argsort(-values, kind="stable")[:count]
        chosen = places[order]
        return [int(place) for place in (chosen if ids is None else ids[chosen])]

    if len(logs) <= max(_NEAR, count):
        return best(np.flatnonzero(logs > -np.inf))
    near = contenders(logs, max(_NEAR, count))
    if len(near) > _FEW * max(_NEAR, count):  # ties without end: noise decides among them anyway
        near = np.sort(top_ids(logs, max(_NEAR, count)))
    if len(near) < count:  # the others are masked
        return best(near)
    least = float(np.partition(scores(near), -count)[-count])  # what the last of the best has at least
    floor = float(logs[near].min())
    # Below the floor, only noise above `least - floor` wins. The slack covers rounding of the exponentials.
    bound = math.exp(-math.exp(min(floor - least, 700.0))) - 2.0**-48
    able = words >= least_word(bound)
    able[near] = True
    candidates = np.flatnonzero(able)
    return best(candidates[logs[candidates] > -np.inf])

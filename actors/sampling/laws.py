"""Laws that travel: float32 (id, probability) pairs, and the one arithmetic that draws from them.

A drafter draws from the very numbers it sends and the verifier reads them through the same
`normalised`; what is sent is therefore the law of the token to the last bit of float64, rounding and
truncation included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from actors.messages import Ids, Laws, Probs
from actors.sampling.processors import LogWeights
from actors.sampling.ranking import top_ids

Floats = npt.NDArray[np.float64]
SparseLaw = tuple[Ids, Probs]  # support [m] and its probabilities [m]

_BLOCK = 256  # weights
_BELOW_ONE = float(np.nextafter(1.0, 0.0))


def truncate(law: LogWeights, support: int) -> SparseLaw:
    """The `support` likeliest tokens of a law, renormalised, best first; 0 keeps all that have any probability."""
    ids, logs = law.ids, law.logs
    if ids is None or 0 < support < len(ids):
        chosen = top_ids(logs, support) if 0 < support < len(logs) else np.flatnonzero(logs > -np.inf)
        ids, logs = chosen if ids is None else ids[chosen], logs[chosen]
    weights = np.exp(logs)
    probs = np.divide(weights, weights.sum(dtype=np.float64), dtype=np.float64).astype(np.float32)
    positive = probs > 0  # -Inf entries, and what float32 cannot hold, are outside the law
    return ids[positive].astype(np.int32), probs[positive]


def normalised(probs: Probs) -> Floats:
    """Probabilities that travelled, [m], as float64 that sum to 1: the meaning of a `Laws` entry."""
    exact = probs.astype(np.float64)
    result: Floats = exact / exact.sum()
    return result


def sample(weights: Floats, uniform: float) -> int:
    """Index drawn in proportion to `weights` [m] (not all zero) by inversion of `uniform` in [0, 1).

    An index of weight zero is never returned. A running sum is slow, so a long one is first found by blocks.
    """
    num_blocks = len(weights) // _BLOCK
    if num_blocks < 2:
        return _invert(weights, uniform)
    whole = weights[: num_blocks * _BLOCK].reshape(num_blocks, _BLOCK).sum(axis=1)
    masses = np.append(whole, weights[num_blocks * _BLOCK :].sum())
    cumulative = masses.cumsum()
    block = _invert(masses, uniform)
    left = uniform * cumulative[-1] - (cumulative[block - 1] if block else 0.0)
    start = block * _BLOCK
    inside = weights[start : start + _BLOCK]
    return start + _invert(inside, min(max(left / masses[block], 0.0), _BELOW_ONE))


def _invert(weights: Floats, uniform: float) -> int:
    cumulative = weights.cumsum()
    index = int(cumulative.searchsorted(uniform * cumulative[-1], side="right"))
    if index < len(weights):
        return index
    return int(np.flatnonzero(weights)[-1])  # the product rounded up to the total


def build(laws: Sequence[SparseLaw]) -> Laws:
    """`Laws` of consecutive positions."""
    lengths = np.array([0, *(len(ids) for ids, _ in laws)], dtype=np.int64)
    return Laws(
        ids=np.concatenate([np.empty(0, np.int32), *(ids for ids, _ in laws)]).astype(np.int32),
        probs=np.concatenate([np.empty(0, np.float32), *(probs for _, probs in laws)]).astype(np.float32),
        cu_len=lengths.cumsum().astype(np.int32),
    )


def concat(laws: Sequence[Laws]) -> Laws:
    """Laws of consecutive drafts, one after another."""
    return build([one.at(i) for one in laws for i in range(one.num_tokens)])


def cut(laws: Laws, start: int, stop: int) -> Laws:
    """Laws of positions `[start, stop)`; both are clipped to what there is."""
    stop = min(stop, laws.num_tokens)
    start = min(max(start, 0), stop)
    a, b = int(laws.cu_len[start]), int(laws.cu_len[stop])
    return Laws(laws.ids[a:b], laws.probs[a:b], laws.cu_len[start : stop + 1] - laws.cu_len[start])

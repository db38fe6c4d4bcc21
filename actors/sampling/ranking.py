"""The best of a row without sorting it: every result equals that of a full stable sort, ties included."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats32 = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

_GROUPS_PER_WANTED = 4
_MIN_GROUPS = 512
_SORT_AT_ONCE = 2048  # so few are sorted faster than counted
_BUCKETS_PER_NAT = 64
_NUM_BUCKETS = 2048


def top_ids(row: Floats32, count: int) -> Indices:
    """Indices of the `count` largest of `row` [n], best first; ties go to the smaller index. [min(count, n)]"""
    if count <= 0:
        return np.empty(0, np.int64)
    threshold = _threshold(row, count) if count < len(row) else -math.inf
    if threshold > -math.inf:
        ids = np.flatnonzero(row > threshold)
        if len(ids) < count:  # a row may hold ties without end, of which only the first are wanted
            ties = np.flatnonzero(row == threshold)
            ids = np.sort(np.concatenate([ids, ties[: count - len(ids)]]))
    else:  # too few above -Inf, or NaN: its ties fill up
        ids = np.arange(len(row))
    best: Indices = ids[np.argsort(-row[ids], kind="stable")[:count]]
    return best


def contenders(row: Floats32, count: int) -> Indices:
    """A small set of indices, ascending, that holds the `count` largest of `row` and all ties with the last.

    Entries of -Inf are left out.
    """
    threshold = _threshold(row, count)
    return np.flatnonzero(row > -np.inf if threshold == -np.inf else row >= threshold)


def _threshold(row: Floats32, count: int) -> float:
    """A value of `row` that at least `count` entries reach, and not many more unless they tie.

    Cut the row into groups: if `count` of them have a maximum of at least t, then `count` values are at
    least t. So t = the `count`-th largest group maximum never exceeds the `count`-th largest value.
    """
    size = len(row)
    depth = size // max(_GROUPS_PER_WANTED * count, _MIN_GROUPS)
    maxima = row
    if depth > 1:
        width = size // depth
        maxima = row[: depth * width].reshape(depth, width).max(axis=0)
        if depth * width < size:
            maxima = np.concatenate([maxima, row[depth * width :]])
    place = max(len(maxima) - count, 0)
    return float(np.partition(maxima, place)[place])


def nucleus(log_weights: Floats32, top_p: float) -> Indices:
    """Indices, ascending, of the fewest best entries whose weight reaches `top_p` of the whole; at least one.

    `log_weights` [n] has the maximum 0. "Best first, ties by index" (Holtzman et al. 1904.09751) asks for a
    sort and a running sum; here weights are rounded to integers that float64 adds without error, so sums
    depend on no order, and all that needs sorting is the one bucket of values in which the sum is reached.
    """
    weights = np.exp(log_weights)
    total = float(weights.sum(dtype=np.float64))
    scale = mass_scale(total)
    target = top_p * total * scale
    # What lies below the floor adds up to less than the share that is cut off. Checked, not trusted.
    share = (1.0 - top_p) * total / len(weights)
    if share > 0.0:
        inside = np.flatnonzero(log_weights >= math.log(share) - 0.1)
        if len(inside) <= _SORT_AT_ONCE:
            masses = integer_masses(weights[inside], scale)
            if float(masses.sum()) >= target:
                return np.sort(inside[_first_to_reach(log_weights[inside], masses, target)])
    masses = integer_masses(weights, scale)
    depths = log_weights * np.float32(-_BUCKETS_PER_NAT)
    buckets = np.minimum(depths, np.float32(_NUM_BUCKETS - 1), out=depths).astype(np.int32)
    reached = np.bincount(buckets, masses, _NUM_BUCKETS).cumsum()
    border = min(int(reached.searchsorted(target)), _NUM_BUCKETS - 1)
    before = float(reached[border - 1]) if border else 0.0
    kept = buckets < border
    last = np.flatnonzero((buckets == border) & (log_weights > -np.inf))
    kept[last[_first_to_reach(log_weights[last], masses[last], target - before)]] = True
    return np.flatnonzero(kept)


def mass_scale(total: float) -> float:
    """A power of two that makes weights of this sum integers whose sums stay below 2^53."""
    return 2.0 ** (51 - math.frexp(total)[1])


def integer_masses(weights: Floats32, scale: float) -> npt.NDArray[np.float64]:
    """Weights times `scale`, rounded to integers: float64 adds them exactly, in any order."""
    masses: npt.NDArray[np.float64] = weights.astype(np.float64)
    masses *= scale
    return np.rint(masses, out=masses)


def _first_to_reach(values: Floats32, masses: npt.NDArray[np.float64], target: float) -> Indices:
    """Of a descending walk, ties by index, the entries before which the sum was below `target`; at least one."""
    order = np.argsort(-values, kind="stable")
    ordered = masses[order]
    before = ordered.cumsum() - ordered
    return order[: max(int(before.searchsorted(target)), 1)]

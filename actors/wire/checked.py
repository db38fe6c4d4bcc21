"""What a drafter sent, looked through before it is used: bytes of another program may be anything.

A drafter is a convenience. What cannot be read from it must cost no more than the draft: not the verifying replica that
reads it, and not the request. (What can be read and is wrong is only a bad draft, as verification finds.)
"""

from __future__ import annotations

import numpy as np

from actors.messages import Draft, Enumeration, Laws

MAX_SECONDS = 1e6  # no time that a draft tells is longer
MAX_TIERS = 256


class Unreadable(Exception):
    """Bytes that are no message of this protocol; one line."""


def check_draft(draft: Draft) -> Draft:
    """The draft itself. Raises `Unreadable`."""
    num_tokens = _length(draft.tokens, "tokens")
    if draft.laws is not None:
        _check_laws(draft.laws, num_tokens)
    if draft.parents is not None and _length(draft.parents, "parents") != num_tokens:
        raise Unreadable(f"a draft of {num_tokens} tokens has {len(draft.parents)} parents")
    for seconds in (draft.seconds, draft.model_seconds, draft.pass_seconds):
        if not isinstance(seconds, int | float) or not 0.0 <= seconds <= MAX_SECONDS:
            raise Unreadable("a draft's times are none")
    for count in (draft.tier, draft.num_cached_tokens, draft.pass_rows, draft.features_missing):
        _check_integer(count)
    if not 0 <= draft.tier < MAX_TIERS:
        raise Unreadable(f"a draft is of tier {draft.tier}")
    if not isinstance(draft.prefix_missing, bool) or not isinstance(draft.error, str | None):
        raise Unreadable("a draft's error is none")
    return draft


def check_enumeration(enumeration: Enumeration) -> Enumeration:
    """The enumeration itself. Raises `Unreadable`."""
    _check_integer(enumeration.round)
    for branch in enumeration.branches:
        _check_integer(branch.node)
        _check_integer(branch.token)
        check_draft(branch.draft)
    check_draft(Draft(np.empty(0, np.int32), tier=enumeration.tier, seconds=enumeration.seconds,
                      model_seconds=enumeration.model_seconds, error=enumeration.error,
                      prefix_missing=enumeration.prefix_missing))
    return enumeration


def _check_laws(laws: Laws, num_tokens: int) -> None:
    support, bounds = _length(laws.ids, "laws"), laws.cu_len
    if _length(laws.probs, "laws", kind="f") != support or _length(bounds, "laws") != num_tokens + 1:
        raise Unreadable("a draft's laws are not one for each token")
    if bounds[0] != 0 or bounds[-1] != support or (np.diff(bounds) < 0).any():
        raise Unreadable("a draft's laws do not follow each other")
    if not np.isfinite(laws.probs).all() or (laws.probs < 0).any():
        raise Unreadable("a draft's law is no law")


def _length(array: object, name: str, kind: str = "i") -> int:
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind != kind:
        raise Unreadable(f"a draft's {name} are no array of numbers")
    return len(array)


def _check_integer(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**31) <= value < 2**31:
        raise Unreadable("a draft's number is none")

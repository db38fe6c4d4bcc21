"""Errors of the sampling functions and the checks that raise them."""

from __future__ import annotations

import math


class BadLogits(ValueError):
    """A row of logits from which no token can be chosen: NaN, +Inf, or nothing but -Inf."""


class BadDraft(ValueError):
    """A draft that contradicts itself, such as a token outside the law it claims to be drawn from."""


def check_best(best: float) -> None:
    """Raise `BadLogits` unless `best`, the largest logit of a row, is finite.

    The maximum tells all: it carries a NaN through, and is +Inf or -Inf in the other two bad cases; single
    -Inf entries are masks and fine.
    """
    if math.isfinite(best):
        return
    if math.isnan(best):
        what = "NaN"
    elif best > 0:
        what = "+Inf"
    else:
        what = "only -Inf (every token is masked)"
    raise BadLogits(f"logits hold {what}; check the model's weights and dtype, and the request's logit_bias")

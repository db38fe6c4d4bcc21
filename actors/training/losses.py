"""Distances between a draft's law and the target's, over the draft's vocabulary.

The target's law is *not* renormalised where the draft cannot follow: what it does not sum up to is the probability
that no draft is accepted, so the mass that a reduced vocabulary loses weighs as it should. `tv` is 1 minus the chance
that rejection sampling accepts the token (Leviathan et al. 2211.17192, §3.2), the very thing to be made small, but its
gradient vanishes far from the goal; `lk` therefore goes from KL to it as acceptance grows (LK losses, 2602.23881:
lambda = exp(-3 acceptance)). `topk` aligns the target's likeliest tokens alone (HASS, 2408.15766, §3.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from actors.training.kind import Batch
from actors.training.target import Target

_TOP = 10  # tokens that `topk` looks at, as in HASS


class Compared(NamedTuple):
    """Means over the weight."""

    loss: torch.Tensor  # scalar
    acceptance: torch.Tensor  # scalar, detached: sum of min(p, q), what rejection sampling accepts at temperature 1
    agreement: torch.Tensor  # scalar, detached: how often both have the same best token, what greedy accepts


def teacher(
    batch: Batch, target: Target, draft_vocab_ids: torch.Tensor | None, at: torch.Tensor | None = None
) -> torch.Tensor:
    """The target's log-probabilities over the draft's vocabulary, [B, T, V'], or [N, V'] at the positions `at`.

    `at` [B, T] bool picks positions (where the weight is not 0: nothing else has a normaliser). No gradient.
    """
    with torch.no_grad():
        if at is None:
            return target.logits(batch.hidden, draft_vocab_ids) - batch.normaliser[..., None]
        return target.logits(batch.hidden[at], draft_vocab_ids) - batch.normaliser[at][..., None]


def compare(
    name: str,
    draft_logits: torch.Tensor,  # [..., V']
    target_log_probs: torch.Tensor,  # [..., V'], their exponentials sum to at most 1
    weight: torch.Tensor,  # [...]
) -> Compared:
    """The loss `name` (one of `LOSSES`), with what draft and target would make of each other. Raises `KeyError`."""
    q = draft_logits.float().log_softmax(-1)
    p = target_log_probs
    total = weight.sum().clamp_min(1e-9)

    def mean(values: torch.Tensor) -> torch.Tensor:
        return (values * weight).sum() / total

    with torch.no_grad():
        acceptance = torch.minimum(p, q).exp().sum(-1)
        agreement = (p.argmax(-1) == q.argmax(-1)).float()
    loss = LOSSES[name](p, q)
    return Compared(mean(loss), mean(acceptance), mean(agreement))


def _kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p.exp() * (p - q)).sum(-1)


def _reverse_kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (q.exp() * (q - p)).sum(-1)


def _total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return 1.0 - torch.minimum(p, q).exp().sum(-1)


def _lk(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    missed = _total_variation(p, q)
    share = torch.exp(-3.0 * (1.0 - missed.detach()))
    return share * _kl(p, q) + (1.0 - share) * missed


def _top_k(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    top, ids = p.topk(min(_TOP, p.shape[-1]), dim=-1)
    return -(top.exp() * q.gather(-1, ids)).sum(-1)


def _jensen_shannon(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    middle = torch.logaddexp(p, q) - math.log(2.0)
    return 0.5 * (_kl(p, middle) + _reverse_kl(middle, q))


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "kl": _kl, "rkl": _reverse_kl, "jsd": _jensen_shannon, "tv": _total_variation, "lk": _lk, "topk": _top_k,
}  # fmt: skip

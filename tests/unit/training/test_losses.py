"""Losses are 0 where the laws agree, and acceptance is what rejection sampling accepts."""

from __future__ import annotations

import pytest
import torch

from actors.training.losses import LOSSES, compare

WEIGHT = torch.tensor([1.0, 0.0, 2.0])


def _laws(seed: int) -> torch.Tensor:
    return torch.randn(3, 12, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_targets_own_law_is_the_least_of_each_loss(name: str) -> None:
    p = _laws(0)
    logits = p.clone().requires_grad_()
    compared = compare(name, logits, p, WEIGHT)
    torch.testing.assert_close(compared.acceptance, torch.tensor(1.0))
    compared.loss.backward()
    assert logits.grad is not None
    if name not in ("tv", "lk", "topk"):  # these have a kink there, or look at a part of the law
        assert float(logits.grad.abs().max()) < 1e-6
    for seed in range(1, 20):
        other = compare(name, 0.5 * (p + _laws(seed)), p, WEIGHT)
        if name != "topk":
            assert float(other.loss) >= float(compared.loss.detach()) - 1e-6
        assert 0 < float(other.acceptance) < 1


def test_a_reduced_vocabulary_loses_what_it_lacks() -> None:
    p, q = _laws(0), _laws(1)
    part = torch.arange(0, 12, 2)
    compared = compare("tv", q[:, part], p[:, part], WEIGHT)
    least = torch.minimum(p[:, part].exp(), q[:, part].softmax(-1)).sum(-1)
    torch.testing.assert_close(compared.acceptance, (least * WEIGHT).sum() / 3)
    torch.testing.assert_close(compared.loss, 1 - compared.acceptance)
    assert float(compare("kl", p[:, part], p[:, part], WEIGHT).acceptance) < 1  # what it never drafts is never accepted


def test_rows_without_weight_do_not_count() -> None:
    p, q = _laws(0), _laws(1)
    other = q.clone()
    other[1] = 50.0 * torch.randn(12)
    for name in LOSSES:
        torch.testing.assert_close(compare(name, q, p, WEIGHT), compare(name, other, p, WEIGHT))

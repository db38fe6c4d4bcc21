"""Losses in chunks are the losses of all rows at once."""

from __future__ import annotations

import pytest
import torch

from actors.training.kinds.rows import compare_rows
from actors.training.losses import LOSSES, compare


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_are_those_of_all_rows_at_once(name: str) -> None:
    torch.manual_seed(0)
    count, hidden, vocab, num_laws = 300, 16, 40, 70
    states = torch.randn(count, hidden, requires_grad=True)
    matrix = torch.randn(vocab, hidden, requires_grad=True)
    target = torch.randn(num_laws, vocab).log_softmax(-1) - 0.1  # the draft's vocabulary lacks some of its mass
    laws = torch.randint(num_laws, (count,))
    weight = torch.rand(count)
    chunked = compare_rows(name, states, matrix, target, laws, weight)
    found = torch.autograd.grad(3.0 * chunked.loss, (states, matrix))
    whole = compare(name, states @ matrix.T, target[laws], weight)
    wanted = torch.autograd.grad(3.0 * whole.loss, (states, matrix))
    for one, other in zip((*chunked, *found), (*whole, *wanted), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_frozen_matrix_gets_no_gradient() -> None:
    states, matrix = torch.randn(5, 4, requires_grad=True), torch.randn(9, 4)
    target = torch.randn(5, 9).log_softmax(-1)
    compare_rows("kl", states, matrix, target, torch.arange(5), torch.ones(5)).loss.backward()
    assert states.grad is not None
    assert matrix.grad is None

"""Losses of many rows over an output matrix, a few rows at a time.

A law over thousands of tokens takes far more memory than the state that it is made of. Its gradient with respect to the
state is as small as the state, so it is found while the law exists, and no law outlives its chunk. That is also faster:
a chunk stays in the cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn import functional

from actors.training.losses import compare

_CHUNK = 128  # rows; of 8192 tokens that is 4 MB of logits


class Compared(NamedTuple):
    """As `losses.Compared`: means over the weight."""

    loss: torch.Tensor  # scalar
    acceptance: torch.Tensor  # scalar, detached
    agreement: torch.Tensor  # scalar, detached


def compare_rows(
    name: str,
    states: torch.Tensor,  # [N, hidden]
    matrix: torch.Tensor,  # [V', hidden]
    target_log_probs: torch.Tensor,  # [num_laws, V'] float32
    laws: torch.Tensor,  # [N] int64: which of them is each row's
    weight: torch.Tensor,  # [N]
) -> Compared:
    """`losses.compare` of the logits `states @ matrix.T`; gradients go to `states` and, if it is trained, `matrix`."""
    parts = _Rows.apply(states, matrix, target_log_probs, laws, weight, name)  # type: ignore[no-untyped-call]
    return Compared(*parts)


class _Rows(torch.autograd.Function):
    """Forward finds the gradients, too; backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        matrix: torch.Tensor,
        target_log_probs: torch.Tensor,
        laws: torch.Tensor,
        weight: torch.Tensor,
        name: str,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        kind = states.device.type
        low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
        trained = ctx.needs_input_grad[1]
        cast = matrix.detach().to(low)
        state_grad = torch.empty_like(states)
        matrix_grad = torch.zeros_like(matrix) if trained else None
        sums = weight.new_zeros(3)
        total = weight.sum().clamp_min(1e-9)
        for begin in range(0, len(states), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            low_states = states[part].detach().to(low)
            share = weight[part].sum() / total
            logits = functional.linear(low_states, cast).float().requires_grad_()
            with torch.enable_grad(), torch.autocast(kind, enabled=False):
                compared = compare(name, logits, target_log_probs[laws[part]], weight[part])
                grad = torch.autograd.grad(compared.loss, logits)[0]
            grad = (grad * share).to(low)
            state_grad[part] = grad @ cast
            if matrix_grad is not None:
                matrix_grad += (grad.T @ low_states).to(matrix_grad.dtype)
            sums += share * torch.stack([one.detach() for one in compared])
        ctx.save_for_backward(state_grad, matrix_grad)
        loss, acceptance, agreement = sums.unbind()
        ctx.mark_non_differentiable(acceptance, agreement)
        return loss, acceptance, agreement

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        state_grad, matrix_grad = ctx.saved_tensors
        return state_grad * grads[0], None if matrix_grad is None else matrix_grad * grads[0], None, None, None, None

"""The loss that all feature-based kinds share: what is drafted at each depth, held to the target's laws."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from actors.training.kind import Batch, Loss
from actors.training.kinds.rows import compare_rows
from actors.training.losses import LOSSES, teacher
from actors.training.target import Target


class Depth(NamedTuple):
    """What the n-th tokens of drafts are made of."""

    states: torch.Tensor  # [B, *places, hidden]: the output matrix makes logits of them
    positions: torch.Tensor  # [*places] int64: the target's law at this position is that of the same token


def loss_by_depth(
    batch: Batch,
    target: Target,
    draft_vocab_ids: torch.Tensor | None,
    name: str,
    decay: float,
    matrix: torch.Tensor,  # [V', hidden]
    depths: Iterable[Depth],
) -> Loss:
    """Mean of the depths' losses `name`, each next one with `decay` times the weight; metrics `accept_n`, `agree_n`.

    Later tokens of a draft count for less, since they matter only if those before were accepted.
    """
    wanted = batch.weight > 0
    laws = teacher(batch, target, draft_vocab_ids, wanted)  # once: depths share most of them
    law_of = (wanted.flatten().cumsum(0) - 1).view(wanted.shape)
    loss = batch.weight.new_zeros(())
    total = 0.0
    metrics: dict[str, torch.Tensor] = {}
    for number, depth in enumerate(depths):
        weight = batch.weight[:, depth.positions]
        at = weight > 0
        compared = compare_rows(
            name, depth.states[at].float(), matrix, laws, law_of[:, depth.positions][at], weight[at]
        )
        share = decay**number
        loss, total = loss + share * compared.loss, total + share
        metrics[f"accept_{number + 1}"] = compared.acceptance
        metrics[f"agree_{number + 1}"] = compared.agreement
    return Loss(loss / total, metrics)


def check_loss(name: str) -> None:
    """Raises `ValueError` for a loss that there is not."""
    if name not in LOSSES:
        raise ValueError(f"there is no loss {name!r}: give one of {', '.join(LOSSES)}")

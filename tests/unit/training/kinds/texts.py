"""Texts of tiny targets as batches, and a few steps of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from actors.training.kind import Batch, Kind, Trainee
from actors.training.target import Target

LENGTH, PROMPT = 40, 8


def sampled(target: Target, num_texts: int, seed: int = 0, length: int = LENGTH) -> torch.Tensor:
    """Texts [num_texts, length] drawn from the target after a first random token."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, target.vocab_size, (num_texts, 1), generator=generator)
    while ids.shape[1] < length:
        law = target.logits(target.run(ids).hidden[:, -1]).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(law, 1, generator=generator)], 1)
    return ids


def batch_of(target: Target, ids: torch.Tensor, kind: Kind, lengths: list[int] | None = None) -> Batch:
    """What the loop would make of `ids` [B, T]; the first `PROMPT` tokens are the prompt."""
    ends = torch.tensor(lengths or [ids.shape[1]] * len(ids))
    places = torch.arange(ids.shape[1])
    weight = ((places >= PROMPT - 1) & (places < ends[:, None] - 1)).float()
    run = target.run(ids, kind.feature_layers(target))
    normaliser = target.logits(run.hidden).logsumexp(-1)
    return Batch(ids, ends, weight, run.features.float(), run.hidden, normaliser)


def train(trainee: Trainee, batches: Callable[[int], Batch], steps: int, lr: float = 1e-2) -> list[float]:
    """The loss of each step."""
    optimiser = torch.optim.AdamW(trainee.trainable(), lr=lr, weight_decay=0.0)
    losses = []
    for step in range(steps):
        loss = trainee(batches(step)).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


@torch.no_grad()
def agreement(trainee: Trainee, batch: Batch, target: Target, num_steps: int) -> list[float]:
    """Of each step of a draft, how often its likeliest token is the target's."""
    ids = trainee.draft_vocab_ids
    wanted = target.logits(batch.hidden).argmax(-1)
    result = []
    for step, logits in enumerate(trainee.roll(batch, num_steps)):
        best = logits.argmax(-1)
        guessed = best if ids is None else ids[best]
        seen = batch.weight * (torch.arange(batch.num_positions) > step)
        result.append(float(((guessed == wanted) * seen).sum() / seen.sum()))
    return result


def round_trip(kind: Kind, trainee: Trainee, target: Target, directory: Path) -> Path:
    """The directory that `kind` exports to."""
    kind.export(trainee, target, directory)
    return directory

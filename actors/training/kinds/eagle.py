"""Training of an `eagle` head: its own drafts are part of it (EAGLE-3, 2503.01840, section 3; HASS, 2408.15766).

A head that has only seen the target's features drafts its second token from a state it has never seen, its own. So
each text is run `steps` times: the first time every row reads the target's features, the s-th time the states that the
head itself left s - 1 tokens after them, exactly as when it drafts (`EagleHead.forward`). All are held to the target's
law of the same token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn import functional

from actors.heads.eagle import EagleHead, eagle_config
from actors.training.kind import Batch, Kind, Loss, Trainee, option
from actors.training.kinds.begin import final_norm, vocabulary
from actors.training.kinds.depths import Depth, check_loss, loss_by_depth
from actors.training.losses import LOSSES
from actors.training.target import Target


@dataclass(frozen=True, slots=True)
class Eagle(Kind):
    """Options of `outrider train eagle`."""

    name: ClassVar[str] = "eagle"
    summary: ClassVar[str] = "a decoder layer over the target's features that drafts token by token (EAGLE-3)"

    layers: tuple[int, ...] = option((), "after which target layers features are read (default: 3, half way, the last)")
    depth: int = option(1, "decoder layers of the head")
    steps: int = option(3, "tokens in a row that it drafts in training (training-time test)")
    decay: float = option(0.8, "weight of each further one, relative to the one before")
    loss: str = option("kl", f"distance from the target's law: {', '.join(LOSSES)}")
    train_output: bool = option(False, "train the output matrix, too, and store it (else it is the target's)")

    def feature_layers(self, target: Target) -> tuple[int, ...]:
        """A low, a middle and the last layer: the last already holds what the target says next."""
        last = target.num_layers
        return self.layers or tuple(sorted({min(3, last), max(1, last // 2), last}))

    def build(self, target: Target, draft_vocab_ids: torch.Tensor | None) -> EagleTrainee:
        """As in `Kind`."""
        check_loss(self.loss)
        if min(self.depth, self.steps) < 1:
            raise ValueError(f"depth {self.depth} and steps {self.steps} must be at least 1")
        return EagleTrainee(self, target, draft_vocab_ids)

    def export(self, trainee: Trainee, target: Target, directory: Path) -> None:
        """As in `Kind`."""
        assert isinstance(trainee, EagleTrainee)
        trainee.head.save(directory, torch.float16, with_head=self.train_output)


class EagleTrainee(Trainee):
    """An `EagleHead`, unrolled."""

    def __init__(self, options: Eagle, target: Target, draft_vocab_ids: torch.Tensor | None) -> None:
        super().__init__()
        self._options = options
        self._target = target
        self.draft_vocab_ids = draft_vocab_ids
        drafted = vocabulary(target, draft_vocab_ids)
        layers = options.feature_layers(target)
        config = eagle_config(target.config, len(drafted.ids), layers, options.depth, target.name)
        self.head = EagleHead.fresh(config, target.embedding, target.head, drafted).to(target.device)
        _begin(self.head, target)
        self.head.head.weight.requires_grad_(options.train_output)

    def forward(self, batch: Batch) -> Loss:
        """As in `Trainee`."""
        options = self._options
        positions = torch.arange(batch.num_positions, device=batch.ids.device)
        steps = self.head(batch.ids, batch.features, options.steps)
        return loss_by_depth(
            batch, self._target, self.draft_vocab_ids, options.loss, options.decay, self.head.head.weight,
            (Depth(self.head.norm(states), positions[step:]) for step, states in enumerate(steps)),
        )  # fmt: skip

    def roll(self, batch: Batch, num_steps: int) -> Iterator[torch.Tensor]:
        """As in `Trainee`."""
        for step, states in enumerate(self.head(batch.ids, batch.features, num_steps)):
            yield functional.pad(self.head.logits(states), (0, 0, step, 0))


def _begin(head: EagleHead, target: Target) -> None:
    """Let an untrained head say what the target's last features say: its layers add nothing yet.

    From there everything it needs is a small change, so a few hundred steps make a usable head.
    """
    hidden = head.config.hidden
    with torch.no_grad():
        head.norm.weight.copy_(final_norm(target))
        head.fuse.weight[:, -hidden:] += torch.eye(hidden, device=head.fuse.weight.device)
        head.join.weight[:, hidden:] += torch.eye(hidden, device=head.join.weight.device)
        layers: list[Any] = list(head.layers)
        for layer in layers:
            layer.out.weight.zero_()
            layer.down.weight.zero_()

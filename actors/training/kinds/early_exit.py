"""Training of the exit of the `early_exit` drafter: the target's own first layers, read early.

Its drafted rows run the very layers that the target would run, so their residual stream is the target's own, whatever
the depth of the draft: one pass over a text trains them all. The target is not touched (LayerSkip, 2404.16710, trains
it; that would be another target).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from actors.heads.exit import ExitConfig, ExitHead
from actors.training.kind import Batch, Kind, Loss, Trainee, option
from actors.training.kinds.begin import final_norm, vocabulary
from actors.training.kinds.depths import Depth, check_loss, loss_by_depth
from actors.training.losses import LOSSES
from actors.training.target import Target


@dataclass(frozen=True, slots=True)
class EarlyExit(Kind):
    """Options of `outrider train early-exit`."""

    name: ClassVar[str] = "early-exit"
    summary: ClassVar[str] = "an exit after the target's first layers, which then draft for all of them"

    exit_layer: int = option(0, "after which target layer it stands (0: a quarter of them)")
    inner: int = option(0, "width of its adapter (0: twice the hidden size)")
    loss: str = option("kl", f"distance from the target's law: {', '.join(LOSSES)}")
    train_output: bool = option(False, "train the output matrix, too, and store it (else it is the target's)")

    def feature_layers(self, target: Target) -> tuple[int, ...]:
        """The exit's."""
        return (self.exit_layer or max(1, target.num_layers // 4),)

    def build(self, target: Target, draft_vocab_ids: torch.Tensor | None) -> EarlyExitTrainee:
        """As in `Kind`."""
        check_loss(self.loss)
        return EarlyExitTrainee(self, target, draft_vocab_ids)

    def export(self, trainee: Trainee, target: Target, directory: Path) -> None:
        """As in `Kind`."""
        assert isinstance(trainee, EarlyExitTrainee)
        trainee.head.save(directory, torch.float16, with_head=self.train_output)


class EarlyExitTrainee(Trainee):
    """An `ExitHead`."""

    def __init__(self, options: EarlyExit, target: Target, draft_vocab_ids: torch.Tensor | None) -> None:
        super().__init__()
        self._options = options
        self._target = target
        self.draft_vocab_ids = draft_vocab_ids
        drafted = vocabulary(target, draft_vocab_ids)
        config = ExitConfig(
            target.hidden, target.vocab_size, target.num_layers, options.feature_layers(target), len(drafted.ids),
            target.name, inner=options.inner or 2 * target.hidden,
            epsilon=float(getattr(target.config, "rms_norm_eps", 1e-5)),
        )  # fmt: skip
        self.head = ExitHead.fresh(config, final_norm(target), target.head, drafted).to(target.device)
        self.head.head.weight.requires_grad_(options.train_output)

    def forward(self, batch: Batch) -> Loss:
        """As in `Trainee`."""
        positions = torch.arange(batch.num_positions, device=batch.ids.device)
        return loss_by_depth(
            batch, self._target, self.draft_vocab_ids, self._options.loss, 1.0, self.head.head.weight,
            [Depth(self.head.states(batch.features.float()), positions)],
        )  # fmt: skip

    def roll(self, batch: Batch, num_steps: int) -> Iterator[torch.Tensor]:
        """As in `Trainee`: alike at every step, see above."""
        logits = self.head(batch.features.float())
        for _ in range(num_steps):
            yield logits

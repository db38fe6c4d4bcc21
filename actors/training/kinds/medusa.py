"""Training of `medusa` heads in two stages (Cai et al., 2401.10774, section 2.2).

Stage 1 trains the heads on a frozen target, over its own output matrix. The paper's stage 2 trains the target with
them, which makes another target; here the served target stays exactly what it is, and stage 2 instead goes on from
stage 1 with more: another residual block in each head, which begins as nothing, and an output matrix of their own.
Both learn the target's whole laws (the paper's self-distillation) rather than the tokens of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from actors.heads.medusa import MedusaHeads, ResidualBlock, medusa_config
from actors.training.kind import Batch, Kind, Loss, Trainee, option
from actors.training.kinds.begin import final_norm, vocabulary
from actors.training.kinds.depths import Depth, check_loss, loss_by_depth
from actors.training.losses import LOSSES
from actors.training.target import Target


@dataclass(frozen=True, slots=True)
class Medusa(Kind):
    """Options of `outrider train medusa`."""

    name: ClassVar[str] = "medusa"
    summary: ClassVar[str] = "heads on the target's last features, one for each token ahead (Medusa)"

    heads: int = option(4, "tokens drafted at most")
    blocks: int = option(1, "residual blocks of each head (stage 2: one more than the heads that it goes on from)")
    stage: int = option(1, "1: heads alone; 2: go on from --start with another block and an output matrix of their own")
    start: str = option("", "stage 2: directory of the heads that stage 1 made")
    decay: float = option(0.8, "weight of each further head, relative to the one before")
    loss: str = option("kl", f"distance from the target's law: {', '.join(LOSSES)}")

    def feature_layers(self, target: Target) -> tuple[int, ...]:
        """The last layer."""
        return (target.num_layers,)

    def build(self, target: Target, draft_vocab_ids: torch.Tensor | None) -> MedusaTrainee:
        """As in `Kind`."""
        check_loss(self.loss)
        if self.stage not in (1, 2):
            raise ValueError(f"stage {self.stage} must be 1 or 2")
        if (self.stage == 2) != bool(self.start):
            raise ValueError("stage 2 goes on from the heads of stage 1: give --stage 2 and --start DIRECTORY together")
        return MedusaTrainee(self, target, draft_vocab_ids)

    def export(self, trainee: Trainee, target: Target, directory: Path) -> None:
        """As in `Kind`."""
        assert isinstance(trainee, MedusaTrainee)
        trainee.head.save(directory, torch.float16, with_head=self.stage == 2)


class MedusaTrainee(Trainee):
    """`MedusaHeads`."""

    def __init__(self, options: Medusa, target: Target, draft_vocab_ids: torch.Tensor | None) -> None:
        super().__init__()
        self._options = options
        self._target = target
        self.draft_vocab_ids = draft_vocab_ids
        head = _second_stage(options, target, draft_vocab_ids) if options.start else None
        if head is None:
            drafted = vocabulary(target, draft_vocab_ids)
            config = medusa_config(target.config, len(drafted.ids), options.heads, options.blocks, target.name)
            head = MedusaHeads.fresh(config, final_norm(target), target.head, drafted)
        self.head = head.to(target.device)
        self.head.head.weight.requires_grad_(options.stage == 2)

    def forward(self, batch: Batch) -> Loss:
        """As in `Trainee`."""
        positions = torch.arange(batch.num_positions, device=batch.ids.device)
        states = self.head.states(batch.features)
        return loss_by_depth(
            batch, self._target, self.draft_vocab_ids, self._options.loss, self._options.decay, self.head.head.weight,
            (Depth(states[:, : -1 - k, k], positions[1 + k :]) for k in range(self.head.config.num_heads)),
        )  # fmt: skip

    def roll(self, batch: Batch, num_steps: int) -> Iterator[torch.Tensor]:
        """As in `Trainee`: head k of the position that the target was last seen at."""
        for k in range(min(num_steps, self.head.config.num_heads)):
            logits = self.head(batch.features[:, : -1 - k], [k])[..., 0, :]
            yield functional.pad(logits, (0, 0, 1 + k, 0))


def _second_stage(options: Medusa, target: Target, draft_vocab_ids: torch.Tensor | None) -> MedusaHeads:
    """The heads of stage 1, deeper: they say the same until they are trained. Raises `ValueError`, `BadHead`."""
    first = MedusaHeads.load(options.start, target.head)
    drafted = vocabulary(target, draft_vocab_ids)
    config = medusa_config(
        target.config, len(drafted.ids), first.config.num_heads, first.config.num_blocks + 1, target.name
    )
    if first.vocabulary.ids.tolist() != drafted.ids.tolist():
        raise ValueError(f"{options.start} drafts another part of the vocabulary: train stage 2 on the same corpus")
    second = MedusaHeads(config)
    second.load_state_dict(first.state_dict(), strict=False)
    assert all(isinstance(head, nn.Sequential) and isinstance(head[-1], ResidualBlock) for head in second.heads)
    return second

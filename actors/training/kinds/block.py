"""Training of a `block` head: whole blocks at once, at random places of the text (DFlash, 2602.06036).

Blocks of one text run side by side, each over the target's features before it. Places near a block's beginning count
for more, since those behind matter only if they were accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch.nn import functional

from actors.heads.block import BlockHead, KeyValue, block_config, over, sees
from actors.training.kind import Batch, Kind, Loss, Trainee, option
from actors.training.kinds.begin import final_norm, vocabulary
from actors.training.kinds.depths import Depth, check_loss, loss_by_depth
from actors.training.losses import LOSSES
from actors.training.target import Target

_ANCHORS_AT_ONCE = 32  # blocks that evaluation runs side by side


@dataclass(frozen=True, slots=True)
class Block(Kind):
    """Options of `outrider train block`."""

    name: ClassVar[str] = "block"
    summary: ClassVar[str] = "drafts a whole block in one pass, its rows seeing each other (DFlash)"

    layers: tuple[int, ...] = option((), "after which target layers features are read (default: 3, half way, the last)")
    depth: int = option(2, "decoder layers of the head")
    block_size: int = option(6, "rows of a block: the newest token and those it drafts")
    window: int = option(0, "context positions that a block sees (0: all)")
    blocks: int = option(32, "blocks of each text that are trained at once")
    decay: float = option(0.8, "weight of each further place of a block, relative to the one before")
    loss: str = option("kl", f"distance from the target's law: {', '.join(LOSSES)}")
    train_output: bool = option(False, "train the output matrix, too, and store it (else it is the target's)")

    def feature_layers(self, target: Target) -> tuple[int, ...]:
        """A low, a middle and the last layer."""
        last = target.num_layers
        return self.layers or tuple(sorted({min(3, last), max(1, last // 2), last}))

    def build(self, target: Target, draft_vocab_ids: torch.Tensor | None) -> BlockTrainee:
        """As in `Kind`."""
        check_loss(self.loss)
        if min(self.depth, self.blocks) < 1:
            raise ValueError(f"depth {self.depth} and blocks {self.blocks} must be at least 1")
        return BlockTrainee(self, target, draft_vocab_ids)

    def export(self, trainee: Trainee, target: Target, directory: Path) -> None:
        """As in `Kind`."""
        assert isinstance(trainee, BlockTrainee)
        trainee.head.save(directory, torch.float16, with_head=self.train_output)


class BlockTrainee(Trainee):
    """A `BlockHead` over many blocks of a text."""

    def __init__(self, options: Block, target: Target, draft_vocab_ids: torch.Tensor | None) -> None:
        super().__init__()
        self._options = options
        self._target = target
        self.draft_vocab_ids = draft_vocab_ids
        drafted = vocabulary(target, draft_vocab_ids)
        config = block_config(
            target.config, len(drafted.ids), options.feature_layers(target), options.depth, options.block_size,
            options.window, target.name,
        )  # fmt: skip
        self.head = BlockHead.fresh(config, target.embedding, target.head, drafted).to(target.device)
        with torch.no_grad():
            self.head.norm.weight.copy_(final_norm(target))
        self.head.head.weight.requires_grad_(options.train_output)

    def forward(self, batch: Batch) -> Loss:
        """As in `Trainee`."""
        options = self._options
        trained = (batch.weight > 0).any(0).nonzero()[:, 0]  # a block's first draft is held to the law at its anchor
        trained = trained[trained >= 1]
        if not len(trained):  # no text has an answer that could follow a block
            return Loss(torch.stack([p.sum() for p in self.trainable()]).sum() * 0.0, {})
        chosen = torch.randperm(len(trained), device=trained.device)[: options.blocks]
        anchors = trained[chosen].sort().values
        positions = torch.arange(batch.num_positions, device=batch.ids.device)
        states = self._blocks(batch.ids, self.head.context(batch.features, positions), anchors)
        last = batch.num_positions - 1
        depths = (
            Depth(states[:, fits, 1 + i], anchors[fits] + i)
            for i in range(options.block_size - 1) if bool((fits := anchors + i <= last).any())
        )
        return loss_by_depth(
            batch, self._target, self.draft_vocab_ids, options.loss, options.decay, self.head.head.weight, depths
        )

    def roll(self, batch: Batch, num_steps: int) -> Iterator[torch.Tensor]:
        """As in `Trainee`: a block at every place of the text."""
        length = batch.num_positions
        if length < 2:
            return
        anchors = torch.arange(1, length, device=batch.ids.device)
        context = self.head.context(batch.features, torch.arange(length, device=batch.ids.device))
        parts = [self._blocks(batch.ids, context, some) for some in torch.split(anchors, _ANCHORS_AT_ONCE)]
        states = torch.cat(parts, 1)  # [B, T - 1, block_size, hidden]
        for step in range(min(num_steps, self._options.block_size - 1)):
            drafted = self.head.logits(states[:, : length - 1 - step, 1 + step])
            yield functional.pad(drafted, (0, 0, 1 + step, 0))

    def _blocks(self, ids: torch.Tensor, context: list[KeyValue], anchors: torch.Tensor) -> torch.Tensor:
        """States of the blocks at `anchors` [num_blocks] of each text, [B, num_blocks, block_size, hidden]."""
        config = self.head.config
        mask = sees(anchors, ids.shape[1], config)
        places = (anchors[:, None] + torch.arange(config.block_size, device=anchors.device)).flatten()

        def attend(i: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return over(context[i], queries, keys, values, mask)

        states = self.head.states(self.head.embed(ids[:, anchors]).flatten(1, 2), places, attend)
        return states.view(len(ids), len(anchors), config.block_size, config.hidden)

"""Mask-token training of a draft model (PARD, 2504.18583): it learns to guess several tokens in one pass.

Beside the rows of a text stand rows of mask tokens (`actors.heads.parallel`): the d-th after position n is to guess
token
n + 1 + d from the text up to n alone. All of them would be `lookahead` times the text, so deeper ones are dropped
(conditional drop, §3.2): of the places that have a mask of depth d - 1, a share `keep` has one of depth d, which thus
finds all masks before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import nn

from actors.loading import reduced
from actors.training.kind import Batch, Kind, Loss, Trainee, option
from actors.training.kinds.draft import Draft, DraftTrainee, checked_loss, save
from actors.training.kinds.rows import compare_rows
from actors.training.losses import LOSSES, teacher
from actors.training.target import Target


@dataclass(frozen=True, slots=True)
class Parallel(Kind):
    """Options of `outrider train parallel`."""

    name: ClassVar[str] = "parallel"
    summary: ClassVar[str] = "a small draft model that guesses several tokens in one pass by mask tokens (PARD)"

    layers: tuple[int, ...] = option((), "target layers that it begins as (1: the first; default: the first and last)")
    lookahead: int = option(5, "tokens that a pass learns to guess")
    masks: int = option(0, "different mask tokens, one for each depth, deeper ones sharing the last; 0: lookahead - 1")
    keep: float = option(0.7, "share of the places with a mask of one depth that have one of the next")
    decay: float = option(0.8, "weight of each further token, relative to the one before")
    loss: str = option("kl", f"distance from the target's law: {', '.join(LOSSES)}")
    train_output: bool = option(True, "train the rows of the output head, too, and store them (else the target's)")

    def feature_layers(self, target: Target) -> tuple[int, ...]:
        """It reads no features."""
        return ()

    def build(self, target: Target, draft_vocab_ids: torch.Tensor | None) -> ParallelTrainee:
        """As in `Kind`."""
        checked_loss(self.loss)
        if self.lookahead < 2:
            raise ValueError(f"lookahead {self.lookahead} leaves nothing to masks: give at least 2, or train a draft")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep {self.keep} must lie between 0 and 1")
        layers = Draft(layers=self.layers).chosen(target)
        return ParallelTrainee(self, layers, target, draft_vocab_ids)

    def export(self, trainee: Trainee, target: Target, directory: Path) -> None:
        """As in `Kind`."""
        assert isinstance(trainee, ParallelTrainee)
        more = {"num_masks": len(trainee.masks), "lookahead": self.lookahead}
        save(trainee, target, directory, self.name, more, {reduced.MASKS: trainee.masks.half()})


class Rows(NamedTuple):
    """Rows of a pass: those of the text, then those of masks, depth by depth."""

    anchor: torch.Tensor  # [R] int64: last position of the text that the row may see
    depth: torch.Tensor  # [R] int64: 0 for a row of the text


def lay_out(num_positions: int, lookahead: int, keep: float, device: torch.device) -> Rows:
    """Which places have masks, drawn by torch's generator; a mask whose guess would lie beyond the text is left out."""
    anchors = [torch.arange(num_positions, device=device)]
    for depth in range(1, lookahead):
        held = anchors[-1]
        held = held[held < num_positions - 1 - depth]  # position n + d guesses token n + d + 1
        if keep < 1 and len(held):
            held = held[(torch.rand(len(held)) < keep).to(device)]
        anchors.append(held)
    depths = torch.cat([torch.full_like(held, depth) for depth, held in enumerate(anchors)])
    return Rows(torch.cat(anchors), depths)


def visible(rows: Rows) -> torch.Tensor:
    """[R, R] bool: which rows (second) each row (first) attends to."""
    anchor, depth = rows.anchor, rows.depth
    text = (depth[None] == 0) & (anchor[None] <= anchor[:, None])
    masks = (depth[None] > 0) & (anchor[None] == anchor[:, None]) & (depth[None] <= depth[:, None])
    return text | masks


class ParallelTrainee(DraftTrainee):
    """A draft model with embeddings of mask tokens."""

    def __init__(
        self, options: Parallel, layers: tuple[int, ...], target: Target, draft_vocab_ids: torch.Tensor | None
    ) -> None:
        super().__init__(options.loss, layers, options.train_output, target, draft_vocab_ids)
        self._options = options
        count = options.masks or options.lookahead - 1
        embedded = target.embedding.detach().float()
        noise = torch.randn(count, target.hidden) * float(embedded.std())
        self.masks = nn.Parameter(embedded.mean(0).expand(count, -1) + noise.to(embedded.device))

    def forward(self, batch: Batch) -> Loss:
        """As in `Trainee`."""
        options = self._options
        rows = lay_out(batch.num_positions, options.lookahead, options.keep, batch.ids.device)
        states = self._run(batch, rows)
        wanted = batch.weight > 0
        laws = teacher(batch, self._target, self.draft_vocab_ids, wanted)
        places = (wanted.flatten().cumsum(0) - 1).view(wanted.shape)
        loss, metrics = batch.weight.new_zeros(()), {}
        for depth in range(options.lookahead):
            chosen = rows.depth == depth
            positions = rows.anchor[chosen] + depth
            at = wanted[:, positions]
            compared = compare_rows(
                options.loss, states[:, chosen][at].float(), self.output, laws, places[:, positions][at],
                batch.weight[:, positions][at],
            )  # fmt: skip
            loss = loss + options.decay**depth * compared.loss
            metrics[f"accept_{depth + 1}"] = compared.acceptance
            metrics[f"agree_{depth + 1}"] = compared.agreement
        return Loss(loss / sum(options.decay**depth for depth in range(options.lookahead)), metrics)

    def roll(self, batch: Batch, num_steps: int) -> Iterator[torch.Tensor]:
        """As in `Trainee`: the guess of depth s for token t + 1 was made at position t - s."""
        rows = lay_out(batch.num_positions, num_steps, 1.0, batch.ids.device)
        states = self._run(batch, rows)
        for depth in range(num_steps):
            chosen = rows.depth == depth
            whole = states.new_zeros(*batch.ids.shape, states.shape[-1])
            whole[:, rows.anchor[chosen] + depth] = states[:, chosen]
            yield self.logits(whole)

    def _run(self, batch: Batch, rows: Rows) -> torch.Tensor:
        """States [B, R, hidden]."""
        text = self._target.embed(batch.ids).float()
        masks = self.masks[(rows.depth[rows.depth > 0] - 1).clamp_max(len(self.masks) - 1)]
        embedded = torch.cat([text, masks[None].expand(len(text), -1, -1)], dim=1)
        sees = torch.zeros(len(rows.anchor), len(rows.anchor), device=text.device)
        sees.masked_fill_(~visible(rows), torch.finfo(sees.dtype).min)
        return self.states(embedded, attention_mask=sees[None, None], position_ids=(rows.anchor + rows.depth)[None])

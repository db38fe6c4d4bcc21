"""What can be trained: the contract between the one loop (`trainer`, `evaluate`) and a kind of drafter.

A kind is a frozen dataclass of its options, which become the options of `outrider train KIND`. It builds a
`Trainee`: an `nn.Module` whose trainable parameters are those to be trained, and whose `forward` is the loss, so that
DeepSpeed can wrap it. The target stands beside it (`actors.training.target`), frozen unless the kind says otherwise.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import nn

if TYPE_CHECKING:
    from actors.training.target import Target


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of the target side by side, padded on the right: causal attention needs no mask for that.

    Whatever describes position t describes the state *after* token t was read, and so the prediction of token t + 1.
    """

    ids: torch.Tensor  # [B, T] int64; padding repeats an id that means nothing
    lengths: torch.Tensor  # [B] int64 tokens that are not padding
    weight: torch.Tensor  # [B, T] float32: how much the prediction at a position counts (1: token t + 1 is part of
    # an answer of the target; 0: it is a prompt, padding, or after the end)
    features: torch.Tensor  # [B, T, num_layers * hidden]: residual stream after each of the kind's `feature_layers`,
    # side by side; last dimension 0 where it has none
    hidden: torch.Tensor  # [B, T, hidden] of the target after its final norm: `Target.logits` makes logits of it
    normaliser: torch.Tensor  # [B, T] float32: log of the sum of the exponentials of all V logits of the target, where
    # `weight` is not 0: a law over a part of the vocabulary then costs no more than that part (`losses.teacher`)

    @property
    def num_texts(self) -> int:
        """B."""
        return self.ids.shape[0]

    @property
    def num_positions(self) -> int:
        """T, padding included."""
        return self.ids.shape[1]

    def to(self, device: torch.device | str) -> Batch:
        """The same on another device."""
        return Batch(*(getattr(self, part.name).to(device) for part in fields(self)))


class Loss(NamedTuple):
    """What a step is to make smaller, and what is to be watched."""

    loss: torch.Tensor  # scalar, a mean over the batch's weight
    metrics: dict[str, torch.Tensor]  # scalars, detached; means over the batch, e.g. {"accept_1": ...}


class Trainee(nn.Module, abc.ABC):
    """The module under training: `requires_grad` marks what is trained, `state_dict` is what checkpoints keep.

    What belongs to the target (embedding, head, features) must not be registered in it: keep the `Target`, which is no
    module.
    """

    draft_vocab_ids: torch.Tensor | None = None  # [V'] int64 ascending: what its laws range over; None: everything

    @abc.abstractmethod
    def forward(self, batch: Batch) -> Loss:
        """The loss of a batch."""

    @abc.abstractmethod
    def roll(self, batch: Batch, num_steps: int) -> Iterator[torch.Tensor]:
        """Draft logits for evaluation, step by step: `num_steps` tensors [B, T, V'] (fewer if it cannot go deeper).

        Step s, position t: the law of token t + 1 as the drafter has it when the target was last seen at position
        t - s (the features of positions up to t - s - 1 and tokens up to t - s are the target's) and the s tokens
        since were drafted, and happened to be the text's own. Where t < s + 1 the values are not looked at.
        """

    def trainable(self) -> list[nn.Parameter]:
        """The parameters that a step changes."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]


@dataclass(frozen=True, slots=True)
class Kind(abc.ABC):
    """A kind of drafter with its options: give each field a default and `option("what it does")`.

    Fields are int, float, bool, str or a tuple of ints (written 2,15,28).
    """

    name: ClassVar[str]  # of the command and of the checkpoint
    summary: ClassVar[str]  # one sentence for --help and for the model card
    learning_rate: ClassVar[float] = 1e-3  # unless the user says otherwise
    trains_target: ClassVar[bool] = False  # it changes the target's own weights, so batches come without features and
    # hidden states: `Target.run` them with gradients

    @abc.abstractmethod
    def feature_layers(self, target: Target) -> tuple[int, ...]:
        """After which decoder layers (1: the first) the residual stream is wanted; () where it is not."""

    @abc.abstractmethod
    def build(self, target: Target, draft_vocab_ids: torch.Tensor | None) -> Trainee:
        """The untrained module, initialised from the target, under the torch seed that is set. Its device is the
        target's.

        `draft_vocab_ids` [V'] int64 ascending: the reduced vocabulary; None: the target's own.
        Raises `ValueError` with one clear line when the options do not fit the target.
        """

    @abc.abstractmethod
    def export(self, trainee: Trainee, target: Target, directory: Path) -> None:
        """Write config.json and model.safetensors into `directory`, ready to be served; not the card."""

    def options(self) -> dict[str, Any]:
        """Option names and values, for the checkpoint and the card."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def option(default: Any, help: str) -> Any:
    """A field of a `Kind`: `hidden: int = option(256, "width of the layers")`."""
    return field(default=default, metadata={"help": help})

"""Distillation of a small draft model that begins as some of the target's own layers (2211.17192 drafts with it).

It shares the target's embedding and, over a reduced vocabulary, its output head, so a file holds little more than the
layers. It needs nothing of the target when it drafts: it can be a tier of its own, on a machine of its own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM

from actors.heads.directory import CONFIG, SECTION
from actors.loading import reduced
from actors.training.kind import Batch, Kind, Loss, Trainee, option
from actors.training.kinds.rows import compare_rows
from actors.training.losses import LOSSES, teacher
from actors.training.target import Target, decoder_layers


@dataclass(frozen=True, slots=True)
class Draft(Kind):
    """Options of `outrider train draft`."""

    name: ClassVar[str] = "draft"
    summary: ClassVar[str] = "a small draft model that begins as some of the target's layers"

    layers: tuple[int, ...] = option((), "target layers that it begins as (1: the first; default: the first and last)")
    loss: str = option("kl", f"distance from the target's law: {', '.join(LOSSES)}")
    train_output: bool = option(True, "train the rows of the output head, too, and store them (else the target's)")

    def feature_layers(self, target: Target) -> tuple[int, ...]:
        """It reads no features."""
        return ()

    def chosen(self, target: Target) -> tuple[int, ...]:
        """The layers it begins as. Raises `ValueError`."""
        layers = self.layers or tuple(dict.fromkeys((1, target.num_layers)))
        if not all(1 <= layer <= target.num_layers for layer in layers):
            raise ValueError(f"--layers {','.join(map(str, layers))}: choose from 1 to {target.num_layers}")
        return layers

    def build(self, target: Target, draft_vocab_ids: torch.Tensor | None) -> DraftTrainee:
        """As in `Kind`."""
        return DraftTrainee(checked_loss(self.loss), self.chosen(target), self.train_output, target, draft_vocab_ids)

    def export(self, trainee: Trainee, target: Target, directory: Path) -> None:
        """As in `Kind`."""
        assert isinstance(trainee, DraftTrainee)
        save(trainee, target, directory, self.name, {})


def checked_loss(name: str) -> str:
    """Raises `ValueError` where there is no such loss."""
    if name not in LOSSES:
        raise ValueError(f"there is no loss {name!r}: give one of {', '.join(LOSSES)}")
    return name


class DraftTrainee(Trainee):
    """Decoder layers and final norm of a transformers model, and rows of an output head."""

    output: torch.Tensor  # [V', hidden]

    def __init__(
        self, loss: str, layers: tuple[int, ...], train_output: bool, target: Target,
        draft_vocab_ids: torch.Tensor | None,
    ) -> None:
        super().__init__()
        if target.has_output_extras:
            raise ValueError(f"{target.name} caps, scales or shifts its logits, which a draft model cannot take over")
        self._loss = loss
        self._target = target
        self.draft_vocab_ids = None if draft_vocab_ids is None else draft_vocab_ids.to(target.device)
        self.config, self.core = _core(target, layers)
        self.core.eval()
        rows = target.head if self.draft_vocab_ids is None else target.head[self.draft_vocab_ids]
        self.trains_output = train_output
        if train_output:
            self.output = nn.Parameter(rows.detach().float().clone())
        else:
            self.register_buffer("output", rows.detach().float(), persistent=False)

    def train(self, mode: bool = True) -> DraftTrainee:
        """Its layers never drop anything out: they are to say what the target says, which is no matter of chance."""
        super().train(mode)
        self.core.eval()
        return self

    def states(self, embedded: torch.Tensor, **options: Any) -> torch.Tensor:
        """States after the final norm [B, R, hidden] of rows that read `embedded` [B, R, hidden]."""
        result: torch.Tensor = self.core(inputs_embeds=embedded, use_cache=False, **options).last_hidden_state
        return result

    def forward(self, batch: Batch) -> Loss:
        """As in `Trainee`."""
        states = self.states(self._target.embed(batch.ids).float())
        wanted = batch.weight > 0
        laws = teacher(batch, self._target, self.draft_vocab_ids, wanted)
        every = torch.arange(len(laws), device=laws.device)
        compared = compare_rows(self._loss, states[wanted].float(), self.output, laws, every, batch.weight[wanted])
        return Loss(compared.loss, {"accept_1": compared.acceptance, "agree_1": compared.agreement})

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., V']."""
        return nn.functional.linear(states, self.output)

    def roll(self, batch: Batch, num_steps: int) -> Iterator[torch.Tensor]:
        """As in `Trainee`: what it knows of a token is the same whoever chose it."""
        logits = self.logits(self.states(self._target.embed(batch.ids).float()))
        for _ in range(num_steps):
            yield logits


def _core(target: Target, layers: tuple[int, ...]) -> tuple[Any, nn.Module]:
    """Configuration and decoder of so many layers, each with the weights of one of the target's; no embedding."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer - 1] for layer in layers]
    small = copy.deepcopy(config)  # the decoder alone is wanted, so the vocabulary costs nothing
    small.vocab_size, small.pad_token_id = 1, None
    made: Any = AutoModelForCausalLM.from_config(small, dtype=torch.float32)  # type: ignore[no-untyped-call]
    body = made.get_decoder() if hasattr(made, "get_decoder") else made.base_model
    own = decoder_layers(body, len(layers), target.name)
    for layer, origin in zip(own, layers, strict=True):
        layer.load_state_dict(target.layers[origin - 1].state_dict())
    inside = set(layer_parameters(own))
    theirs = dict(target.body.named_parameters())
    embedding = body.get_input_embeddings()
    with torch.no_grad():
        for name, parameter in body.named_parameters():
            if id(parameter) not in inside and parameter is not embedding.weight:
                parameter.copy_(theirs[name])
    body.set_input_embeddings(nn.Identity())  # the target's is used, and stays out of what is trained and stored
    body.requires_grad_(True)
    config.tie_word_embeddings = False
    return config, body.to(target.device)


def layer_parameters(layers: nn.ModuleList) -> list[int]:
    """Identities of all parameters of the layers."""
    return [id(parameter) for parameter in layers.parameters()]


def save(
    trainee: DraftTrainee, target: Target, directory: Path, kind: str, more: dict[str, Any],
    tensors: dict[str, torch.Tensor] | None = None,
) -> None:
    """Write what `actors.loading.reduced` reads, in half precision. `more`: of the section."""
    directory.mkdir(parents=True, exist_ok=True)
    prefix = target.body_prefix
    stored = {f"{prefix}{name}": value.half() for name, value in trainee.core.state_dict().items()}
    if trainee.draft_vocab_ids is not None:
        stored[reduced.IDS] = trainee.draft_vocab_ids.int()
    if trainee.trains_output:
        stored[reduced.HEAD] = trainee.output.half()
    stored |= tensors or {}
    save_file(
        {name: value.detach().cpu().contiguous() for name, value in stored.items()}, directory / reduced.WEIGHTS,
        {"format": "pt"},
    )
    config = trainee.config.to_dict()
    for mark in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
        config.pop(mark, None)
    config[SECTION] = {
        "kind": kind, "format": reduced.FORMAT, "target": target.name, "hidden": target.hidden,
        "vocab_size": target.vocab_size, "draft_vocab_size": len(trainee.output), **more,
    }  # fmt: skip
    (directory / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")

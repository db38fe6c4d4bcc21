"""Runs packed steps on one (shard of a) transformers model with paged keys and values."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from actors.engine.attention import PagedKV
from actors.engine.layers import LayerChoice
from actors.engine.plane import WithPlane, make_plane
from actors.engine.probe import Geometry, UnsupportedAttention, probe
from actors.engine.step import StepInput
from actors.spec import ModelSpec

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Attention(Protocol):
    """Keys and values of all layers, and the attention function over them that transformers call by `name`."""

    @property
    def name(self) -> str:
        """Key of the function in transformers' attention registry; it gets `plan(step)` as keyword `plan`."""
        ...

    def copy_pages(self, copies: np.ndarray) -> None:
        """Copy whole pages in every layer; `copies` [num_copies, 2] int32 (from, to)."""
        ...

    def move_slots(self, moves: np.ndarray) -> None:
        """Move single tokens in every layer; `moves` [num_moves, 2] int32 slots (from, to), one after another."""
        ...

    def plan(self, step: StepInput) -> Any:
        """What the layers of one step share."""
        ...


class LocalRunner(WithPlane):
    """The `ModelRunner` of one process. Owns the KV tensors; knows nothing of sequences or pages' owners.

    `model` must have its linear layers replaced already (`actors.engine.linear`, or the sharded ones).
    """

    shares_head = False  # whole on every rank

    def __init__(self, model: Any, spec: ModelSpec) -> None:
        config = model.config.get_text_config()
        check_positions(config, spec)
        _warn_of_odd_widths(model, spec)
        self._model = model
        self._device = spec.device
        self.num_pages = spec.num_pages
        self.vocab_size = int(config.vocab_size)
        self._layers = LayerChoice(model, spec.model)
        self._attention = _attention(spec, probe(model, spec.model, spec.device).layers, self.num_pages)
        model.set_attn_implementation(self._attention.name)
        num_slots = (self.num_pages + 1) * spec.page_tokens
        self.plane = make_plane(spec, self._layers.num_layers, int(config.hidden_size), num_slots)
        self._slots = torch.empty(0, dtype=torch.int64)  # of the rows of the pass under way
        for place, layer in enumerate(spec.feature_layers):
            self._layers.show(layer - 1, partial(self._keep, place))

    @torch.inference_mode()
    def forward(self, step: StepInput, inputs_embeds: torch.Tensor | None = None) -> torch.Tensor:
        """One packed pass: logits of `step.logit_rows`, [num_logits, vocab_size] float32 on CPU, or their residual
        stream (see `ModelRunner`).

        `inputs_embeds`: [num_rows, hidden] in place of the embeddings of the tokens.
        """
        if len(step.moves):
            self._attention.move_slots(step.moves)
        if len(step.copies):
            self._attention.copy_pages(step.copies)
        if self.plane is not None:
            self.plane.rearrange(step.moves, step.copies)
            self._slots = torch.from_numpy(step.slots).long().to(self._device)
        self._layers.run(step.layers)
        rows = torch.from_numpy(step.logit_rows).long().to(self._device)
        read: dict[str, torch.Tensor] = {}
        if inputs_embeds is None:
            read["input_ids"] = torch.from_numpy(step.input_ids).long()[None].to(self._device)
        else:
            read["inputs_embeds"] = inputs_embeds[None].to(self._device, self._model.dtype)
        output = self._model(
            **read,
            position_ids=torch.from_numpy(step.positions).long()[None].to(self._device),
            use_cache=False,
            logits_to_keep=rows[:0] if step.wants_hidden else rows,
            plan=self._attention.plan(step),
        )
        if step.wants_hidden:
            return self._layers.hidden[0, rows].float().cpu()
        logits: torch.Tensor = output.logits[0].float().cpu()
        return logits

    def _keep(self, place: int, hidden: torch.Tensor) -> None:
        assert self.plane is not None
        self.plane.put(place, self._slots, hidden[0])


def _attention(spec: ModelSpec, seen: list[Geometry], num_pages: int) -> Attention:
    layers = [(g.num_kv_heads, g.head_dim) for g in seen]
    if spec.device == "cpu" and spec.kernels == "native":
        from actors.engine.native.attention import MOST_HEAD_DIM, NativeAttention

        if max(dim for _, dim in layers) <= MOST_HEAD_DIM:
            return NativeAttention(layers, num_pages, spec.page_tokens, spec.kv_kind)
        log.warning("%s: heads larger than %d run through the framework's attention", spec.model, MOST_HEAD_DIM)
    if spec.kv_kind not in DTYPES:
        raise UnsupportedAttention(f"{spec.model}: kv_dtype {spec.kv_kind} needs kernels: native; use {spec.dtype}")
    return PagedKV(layers, num_pages, spec.page_tokens, DTYPES[spec.kv_kind], spec.device)


def check_positions(config: Any, spec: ModelSpec) -> None:
    """Some rotary positions change with the longest sequence of a batch, so rows would see their neighbours.

    Raises:
        UnsupportedAttention: sequences may become long enough for that; the message names the limit.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {rope.get("rope_type")} | {v.get("rope_type") for v in rope.values() if isinstance(v, dict)}
    if not kinds & {"dynamic", "longrope"}:
        return
    limit = int(rope.get("original_max_position_embeddings") or config.max_position_embeddings)
    if (spec.max_context_tokens or int(config.max_position_embeddings)) > limit:
        raise UnsupportedAttention(
            f"{spec.model}: its rotary positions change beyond {limit} tokens, for all sequences of a batch at once: "
            f"set max_context_tokens to at most {limit}"
        )


def _warn_of_odd_widths(model: Any, spec: ModelSpec) -> None:
    """Elementwise kernels treat a tail of less than 16 values differently, so there rows could see each other."""
    head = model.get_output_embeddings()
    odd = {m.out_features for m in model.modules() if m is not head and getattr(m, "out_features", 0) % 16}
    if odd and spec.device == "cpu":
        log.warning(
            "%s: layer widths %s are not multiples of 16 (on this rank): logits may differ in the last bit with the "
            "number of rows, so equal ids hold only up to near ties",
            spec.model, sorted(odd),
        )
